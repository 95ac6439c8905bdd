"""Guards `txstore doctor`: a report of a fault shows who holds a store and what endangers it, opens nothing, and gives
away no message.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import txstore
from txstore import Message
from txstore.cli.commands import run
from txstore.inspection.doctor import diagnose, file_system_of

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 0:50 / /data/a\\040b rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
32 22 0:51 / /data/ro ro,relatime - xfs /dev/sdb1 rw
"""


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with txstore.open(tmp_path / "orders.store") as broker:
        broker.producer("shop").send(Message("orders", b"hush-hush", keys=["secret-key"]))
    return tmp_path / "orders.store"


def test_machine_is_described_without_a_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TXSTORE_PATH", raising=False)
    code, found = told(capsys)
    assert list(found) == ["versions", "machine", "limits", "clock", "findings"]
    assert code == bool(found["findings"])
    assert found["versions"]["txstore"] == txstore.__version__
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert found["limits"]["open_files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_closed_store_is_described_and_not_opened(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {one: one.stat().st_mtime_ns for one in path.rglob("*")}
    code, found = told(capsys, str(path))
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*")} == before
    assert (code, found["findings"]) == (0, [])
    assert (found["store"]["exists"], found["store"]["log_files"], found["lock"]["held"]) == (True, 1, False)
    assert found["file_system"]["free_bytes"] > 0
    assert "hush" not in json.dumps(found)
    assert "secret-key" not in json.dumps(found)
    assert "orders" not in json.dumps(found).replace(str(path), "")


def test_holder_of_the_lock_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = f"import txstore, sys\nwith txstore.open({str(path)!r}):\n print('open', flush=True)\n sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "open\n"
        code, found = told(capsys, str(path))
        assert (code, found["findings"]) == (0, [])
        assert found["lock"]["held"] is True
        assert found["lock"]["held_by_processes"] == [child.pid]
        child.stdin.close()
        assert child.wait() == 0
    assert told(capsys, str(path))[1]["lock"]["held"] is False


def test_socket_of_the_writer_answers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with txstore.open(path, shared=True) as broker:
        broker.topics()
        lock = told(capsys, str(path))[1]["lock"]
        assert lock["socket_state"] == "answers"
        assert f"process {os.getpid()} " in lock["lock_file_names"]
    assert told(capsys, str(path))[1]["lock"]["socket_state"] != "answers"


def test_what_endangers_a_store_is_a_finding(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.chmod(0o777)
    (log,) = (path / "commitlog").iterdir()
    later = time.time() + 3600
    os.utime(log, (later, later))
    code, found = told(capsys, str(path))
    assert code == 1
    first, second = found["findings"]
    assert first.startswith(f"every user may write {path}\nhint: chmod")
    assert "in the future: the clock was set back" in second


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_path_without_a_store_is_a_finding(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    code, found = told(capsys, str(tmp_path / name))
    assert code == 1
    assert str(tmp_path / name) in found["findings"][0]


def test_store_by_the_environment_in_text(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXSTORE_PATH", str(path))
    assert run(["doctor"]) == 0
    said = capsys.readouterr().out
    for heading in ("versions", "machine", "limits", "clock", "file system", "store", "lock"):
        assert f"{heading}\n" in said
    assert said.endswith("nothing is likely to cause trouble\n")


def test_too_few_open_files_are_a_finding() -> None:
    program = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, r.getrlimit(r.RLIMIT_NOFILE)[1]))\n"
        "from txstore.inspection.doctor import diagnose; print(diagnose().findings[0])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("only 256 files may be open")


@pytest.mark.parametrize(
    ("path", "kind", "option"),
    [("/var/lib/x", "ext4", "relatime"), ("/data/a b/x.store", "nfs4", "vers=4.2"), ("/data/ro/x", "xfs", "ro")],
)
def test_file_system_is_that_of_the_innermost_mount(path: str, kind: str, option: str) -> None:
    found = file_system_of(Path(path), MOUNTS)
    assert found is not None
    assert (found.kind, option in found.options) == (kind, True)


def test_file_system_of_memory_is_a_finding(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or (found := file_system_of(shared)) is None or found.kind != "tmpfs":
        pytest.skip("there is no tmpfs at /dev/shm")
    findings = diagnose(str(shared)).findings
    assert any("a restart of the machine loses the store" in one for one in findings)
