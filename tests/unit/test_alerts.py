"""Guards the alerts and the runbook of docs/operate: each alert has a section, and all that they name exists.

Expressions are parsed, and their metrics are compared with those that a server exports. With Prometheus' own promtool
(Debian's package `prometheus`), the rules are also checked, and each of them must fire on what it is about.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

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
from tests.unit.test_deploy import selectors
from tests.unit.test_server_metrics import WITH_METRICS, Seen
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, serve
from txstore.cli.commands import app
from txstore.database import Database

yaml = pytest.importorskip("yaml")
promql = pytest.importorskip("promql_parser")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "operate" / "deploy"
NOT_OURS = {"up"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", (ROOT / "docs/operate/runbook.md").read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_alert_has_its_section() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    assert list(sections()) == names
    for name, text in sections().items():
        assert re.search(r"\*\*Meaning\.\*\* .*\n\n\*\*Look at\.\*\* .*\n\n```sh\n", text), name


def test_each_alert_says_how_bad_it_is_and_what_it_is() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/operate/runbook.md").read_text(), flags=re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def unknown_in(words: list[str]) -> str | None:
    """What the command line does not know of a command; None if it knows all."""
    command: Any = get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "get_command"):
        found = command.get_command(None, rest[0])
        if found is None:
            return rest[0]
        command, rest = found, rest[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    return next((word for word in rest if word.startswith("-") and word not in known), None)


def test_commands_of_the_runbook_exist() -> None:
    ours = [words for words in commands() if words[0] == "txstore"]
    assert len(ours) > 20
    assert [words for words in ours if unknown_in(words) is not None] == []
    assert unknown_in(["txstore", "tx", "explode"]) == "explode"
    assert unknown_in(["txstore", "tx", "list", "--unheard"]) == "--unheard"


def test_metrics_of_the_alerts_are_exported_with_their_labels(broker: EmbeddedBroker, tmp_path: Path) -> None:
    database = Database(tmp_path / "orders.db")
    database.create_table()
    broker.producer("order-service", database=database)
    with Server(broker, WITH_METRICS) as server, Wire(str(server.address)) as wire:
        wire.call(HEARTBEAT, {}, heartbeat("c1", "c", producers=("g",)))
        assert wire.call(END, ending(wire.call(SEND_V2, half(), b"tx"), COMMIT)).code == 0
        assert wire.call(PULL, pulling()).code == 0
        wire.call(UPDATE_OFFSET, {"consumerGroup": "c", "topic": "orders", "queueId": 0, "commitOffset": 0})
        with serve(tmp_path / "copy", listen="127.0.0.1:0", name_server=None, replica_of=server.address):
            eventually(lambda: server.native.replicas() != [])
            seen = Seen(server)
    for rule in rules():
        found = list(selectors(promql.parse(rule["expr"])))
        assert found, rule["alert"]
        for selector in found:
            if selector.name not in NOT_OURS:
                labels = seen.labels_of(selector.name)
                assert labels, f"{rule['alert']}: {selector.name} is not exported"
                assert {matcher.name for matcher in selector.matchers.matchers} <= labels, rule["alert"]
                for grouped in re.findall(r"(?:by|on) \(([\w, ]+)\)", rule["expr"]):
                    assert {name.strip() for name in grouped.split(",")} <= labels, rule["alert"]
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            kept = [
                name.strip() for group in re.findall(r"by \(([\w, ]+)\)", rule["expr"]) for name in group.split(",")
            ]
            names = kept or seen.labels_of(found[0].name) or {"instance"}
            assert label in names, f"{rule['alert']}: its summary names {label}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here (Debian: prometheus)")
def test_promtool_accepts_the_rules_and_each_of_them_fires() -> None:
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    expected = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text())["tests"][0]["promql_expr_test"][0]
    fired = {re.findall(r'alertname="(\w+)"', sample["labels"])[0] for sample in expected["exp_samples"]}
    assert fired == {rule["alert"] for rule in rules()}
