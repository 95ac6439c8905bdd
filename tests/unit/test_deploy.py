"""Guards docs/operate/deploy: its systemd unit, Dockerfile and Grafana dashboard can be used as they are.

Each is read by its own tool, or run as that tool would run it; the pages show the same files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import txstore
from tests.frames import Wire
from tests.remoting_requests import (
    COMMIT,
    END,
    HEARTBEAT,
    PULL,
    SEND_V2,
    UPDATE_OFFSET,
    ending,
    half,
    heartbeat,
    pulling,
)
from tests.unit.test_server_metrics import WITH_METRICS, Seen
from tests.unit.test_slaves import Slave, copied, end_of, files_of, register, send
from tests.unit.test_slaves import serve as serve_a_master
from tests.unit.test_wheel import install, new_environment
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server
from txstore.database import Database

pytest.importorskip("typer")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "operate" / "deploy"
TXSTORE = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]
FREE = ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]


def block(kind: str) -> str:
    """The block of docs/operate/serve.md in that language."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", (ROOT / "docs/operate/serve.md").read_text(), flags=re.DOTALL)
    return str(found)


@contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def addresses_of(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    addresses = json.loads(process.stdout.readline())
    assert isinstance(addresses, dict)
    return addresses


def is_ready(address: str) -> bool:
    with urllib.request.urlopen(f"http://{address}/readyz", timeout=20) as answer:
        return bool(answer.status == 200)


# systemd --------------------------------------------------------------------------------------------------------------


def unit() -> dict[str, str]:
    lines = (DEPLOY / "txstore.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_page_shows_the_unit_that_systemd_accepts(tmp_path: Path) -> None:
    text = (DEPLOY / "txstore.service").read_text()
    assert block("ini") == text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    there = tmp_path / "orders.service"
    # The program of the unit must exist for the verification.
    there.write_text(text.replace("/usr/local/bin/txstore", sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(there)], capture_output=True, text=True, timeout=60, check=False
    )
    about_it = [line for line in verified.stderr.splitlines() if "orders.service" in line]
    assert (verified.returncode, about_it) == (0, []), verified.stderr


def test_program_of_the_unit_reports_ready_reloads_and_stops(tmp_path: Path) -> None:
    """As systemd does it: an abstract socket for notifications, SIGHUP to reload, SIGTERM to stop."""
    assert unit()["Type"] == "notify"
    (tmp_path / "orders").mkdir()
    start = shlex.split(unit()["ExecStart"].replace("%S", str(tmp_path)))
    reload = shlex.split(unit()["ExecReload"])
    assert (start[0], reload[1:]) == ("/usr/local/bin/txstore", ["-HUP", "$MAINPID"])
    name = f"txstore-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"\0{name}")
        told.settimeout(60)
        with running([*TXSTORE, *start[1:], *FREE], NOTIFY_SOCKET=f"@{name}") as process:
            assert told.recv(100) == b"READY=1"
            addresses = addresses_of(process)
            assert is_ready(addresses["metrics"])
            process.send_signal(signal.SIGHUP)
            with Wire(addresses["broker"]) as wire:
                assert wire.call(SEND_V2, half(), b"tx").code == 0
            process.send_signal(signal.SIGTERM)
            assert told.recv(100) == b"STOPPING=1"
            _, log = process.communicate(timeout=60)
            assert process.returncode == 0
    assert all(json.loads(line)["level"] in ("info", "warning") for line in log.splitlines()), log
    with txstore.open(tmp_path / "orders" / "orders.store") as broker:
        assert broker.open_report.clean
        assert broker.stat().pending_transactions == 1


# Docker ---------------------------------------------------------------------------------------------------------------


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions in order."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines())]


def entry() -> list[str]:
    """The command that the container runs, with its default arguments."""
    steps = dict(dockerfile())
    return [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])]


def check_the_entry(program: Sequence[str], directory: Path) -> None:
    """Runs the container's command with this program, in another directory and at free ports, until it is stopped."""
    command = [part.replace("/data/", f"{directory}/") for part in entry()[1:]]
    command = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", part) for part in command]
    with running([*program, *command]) as process:
        addresses = addresses_of(process)
        assert is_ready(addresses["metrics"])
        with Wire(addresses["broker"]) as wire:
            assert wire.call(SEND_V2, half(), b"tx").code == 0
        with urllib.request.urlopen(f"http://{addresses['metrics']}/metrics", timeout=20) as answer:
            assert b"rocketmq_half_messages" in answer.read()
        process.send_signal(getattr(signal, dict(dockerfile())["STOPSIGNAL"]))
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
    assert all(json.loads(line)["level"] == "info" for line in log.splitlines()), log


def test_page_shows_the_dockerfile_and_its_command_serves(tmp_path: Path) -> None:
    assert block("dockerfile") == (DEPLOY / "Dockerfile").read_text()
    steps = dict(dockerfile())
    ports = {part.rpartition(":")[2] for part in entry() if part.startswith("0.0.0.0:")}
    assert ports == set(steps["EXPOSE"].split())
    words = [word for word, _ in dockerfile()]
    # The server's user is not root, and owns the volume: an instruction after VOLUME would not change its owner.
    assert words.index("RUN") < words.index("USER") < words.index("VOLUME")
    assert f"install --directory --owner={steps['USER']} {steps['VOLUME']}" in steps["RUN"]
    assert entry()[2].startswith(f"{steps['VOLUME']}/")
    check_the_entry(TXSTORE, tmp_path)


@pytest.mark.skipif("TXSTORE_WHEEL" not in os.environ, reason="TXSTORE_WHEEL names no wheel of this tree (make build)")
def test_steps_of_the_dockerfile_work_in_a_clean_environment(tmp_path: Path) -> None:
    """What `docker build` would do, with a wheel of this tree, as far as that is possible without Docker."""
    steps = dict(dockerfile())
    (_, wheels) = steps["COPY"].split()
    (found, extras) = re.findall(r'pip install --no-cache-dir "\$\(ls ([^)]+)\)(\[[\w,]+\])"', steps["RUN"])[0]
    wheel = Path(os.environ["TXSTORE_WHEEL"]).resolve()
    assert PurePosixPath(wheels, wheel.name).match(found)
    python = new_environment(tmp_path / "venv")
    install(python, f"{wheel}{extras}")
    check_the_entry([str(python.with_name(entry()[0]))], tmp_path)
    check = json.loads(dict(dockerfile())["HEALTHCHECK"].partition("CMD ")[2])
    refused = subprocess.run([str(python), *check[1:]], capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "Connection refused" in refused.stderr) == (1, True), (
        "no collector listens there in the test"
    )


# Grafana --------------------------------------------------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    found = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert isinstance(found, dict)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """All PromQL expressions in it, with Grafana's own variables filled in."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found.append(variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0])
    return [one.replace("$__rate_interval", "5m") for one in found]


def lost(mine: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """The parts of `mine` that are missing or different in `theirs`."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for name, value in mine.items():
            yield from lost(value, theirs[name], f"{path}.{name}") if name in theirs else [f"{path}.{name}"]
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif mine != theirs:
        yield f"{path}: {mine!r} is read as {theirs!r}"


def test_grafana_s_own_types_read_the_whole_dashboard() -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    read = json.loads(json.dumps(models.Dashboard.from_json(dashboard()), cls=encoder.JSONEncoder))
    assert list(lost(dashboard(), read)) == []
    assert list(lost({"a": [{"b": 1}], "c": 2}, {"a": [{}]})) == [".a[0].b", ".c"], "the comparison finds a difference"


def test_dashboard_queries_the_selected_prometheus() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    (variable,) = [one for one in dashboard()["templating"]["list"] if one["type"] == "datasource"]
    assert (variable["name"], variable["query"]) == ("datasource", "prometheus")
    queries = [one for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    assert [one["datasource"] for one in queries] == [chosen] * 3
    for panel in panels():
        assert panel["datasource"] == chosen, panel["title"]
        assert all(target["datasource"] == chosen for target in panel["targets"]), panel["title"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for area in (panel["gridPos"] for panel in dashboard()["panels"])
        for x in range(area["x"], area["x"] + area["w"])
        for y in range(area["y"], area["y"] + area["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel overlaps another"
    assert max(x for x, _ in cells) < 24


def selectors(expression: Any) -> Iterator[Any]:
    """The metrics that a parsed expression selects."""
    if type(expression).__name__ == "VectorSelector":
        yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inside = getattr(expression, name, None)
        if inside is not None and not isinstance(inside, str | float | int):
            yield from selectors(inside)
    for argument in getattr(expression, "args", None) or ():
        yield from selectors(argument)


def seen_with_a_slave(directory: Path) -> Seen:
    """What a master with a slave of RocketMQ exports."""
    with serve_a_master(directory / "master", metrics="127.0.0.1:0") as master:
        send(master, 10)
        end = end_of(master)
        with copied(directory / "slave", files_of(directory / "master", end)) as slave:
            register(master, str(slave.address))
            with Slave(master, end):
                eventually(lambda: "slave" in Seen(master).labels_of("txstore_slave_lag_bytes"))
                return Seen(master)


def test_every_metric_of_the_dashboard_is_exported_with_its_labels(broker: EmbeddedBroker, tmp_path: Path) -> None:
    promql = pytest.importorskip("promql_parser")
    database = Database(tmp_path / "orders.db")
    database.create_table()
    broker.producer("order-service", database=database)
    with Server(broker, WITH_METRICS) as server, Wire(str(server.address)) as wire:
        wire.call(HEARTBEAT, {}, heartbeat("c1", "c", producers=("g",)))
        sent = wire.call(SEND_V2, half(), b"tx")
        assert wire.call(END, ending(sent, COMMIT)).code == 0
        wire.call(SEND_V2, half(unique_id="ID2"), b"tx")
        assert wire.call(PULL, pulling()).code == 0
        wire.call(UPDATE_OFFSET, {"consumerGroup": "c", "topic": "orders", "queueId": 0, "commitOffset": 0})
        with txstore.serve(tmp_path / "copy", listen="127.0.0.1:0", name_server=None, replica_of=server.address):
            eventually(lambda: server.native.replicas() != [])
            seen = Seen(server)
    with_a_slave = seen_with_a_slave(tmp_path)

    def labels_of(name: str) -> set[str]:
        return seen.labels_of(name) | with_a_slave.labels_of(name)

    asked = set()
    for text in expressions():
        for selector in selectors(promql.parse(text)):
            if selector.name is None:  # A variable that matches several names.
                continue
            asked.add(selector.name)
            labels = labels_of(selector.name)
            assert labels, f"{selector.name} is not exported: {text}"
            assert {matcher.name for matcher in selector.matchers.matchers} <= labels, text
        for grouped in re.findall(r"by \(([\w, ]+)\)", text):
            names = {name.strip() for name in grouped.split(",")}
            (metric,) = {selector.name for selector in selectors(promql.parse(text))}
            assert names <= labels_of(metric), text
    # The dashboard shows every exported metric.
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked} == set(seen.kinds)


# Kubernetes -----------------------------------------------------------------------------------------------------------


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests by kind."""
    yaml = pytest.importorskip("yaml")
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_manifests_are_valid_by_kubernetes_own_schema() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for manifest in manifests().values():
        validator.validate(manifest, validator.latest_version(), strict=True)
    manifest = manifests()["StatefulSet"]
    manifest["spec"]["replica"] = 1
    with pytest.raises(validator.ValidationError, match="replica"):
        validator.validate(manifest, validator.latest_version(), strict=True)


def test_manifest_serves_with_durable_defaults_and_its_probes_answer(tmp_path: Path) -> None:
    """Runs the container's command as the manifest has it, in another directory and at free ports."""
    (container,) = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in manifests()["Service"]["spec"]["ports"]}
    command = [part.replace("/data/", f"{tmp_path}/") for part in [*container["command"], *container["args"]]]
    asked = {int(found[1]) for part in command if (found := re.search(r"=0\.0\.0\.0:(\d+)$", part))}
    assert asked == set(ports.values())
    command = [re.sub(r"=0\.0\.0\.0:\d+$", "=127.0.0.1:0", part) for part in command]
    assert "--set=flush_disk_type=SYNC_FLUSH" in command
    with running([*TXSTORE, *command[1:]]) as process:
        addresses = addresses_of(process)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asks = container[probe]["httpGet"]
            assert asks["port"] in ports
            with urllib.request.urlopen(f"http://{addresses[asks['port']]}{asks['path']}", timeout=20) as answer:
                assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "/data" in mounted
