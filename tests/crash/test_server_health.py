"""Guards the health of a server whose store takes no more messages: it reports so, and exits if only a restart
helps.

A small tmpfs is filled while a server runs on it: `/readyz` and a metric report the full disk, consumers continue, and
when there is space again the server is ready before the next send. strace lets a sync fail in a server's process:
`/readyz` and a metric report that the store is poisoned, consumers continue; `txstore serve` ends with an exit code of
its own, so that a service manager starts it again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.crash.tracer import Tracer, why_not
from tests.frames import Wire
from tests.remoting_requests import PULL, SEND_V2, half, heartbeat, pulling, sending
from tests.waiting import eventually

pytestmark = pytest.mark.kill
pytest.importorskip("typer")
pytest.importorskip("prometheus_client")
needs_strace = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")

HEARTBEAT, OFFSET, UNAVAILABLE = 34, 14, 14
BODY = b"x" * 60_000
POISONED = 5
SERVES = """
import json, sys, txstore
with txstore.serve(sys.argv[1], listen="127.0.0.1:0", name_server=None, metrics="127.0.0.1:0") as server:
    print(json.dumps({"broker": server.address, "metrics": server.metrics}), flush=True)
    sys.stdin.read()
"""
COMMAND = "import sys; from txstore.cli.main import main; sys.exit(main())"
FREE = ["--listen", "127.0.0.1:0", "--name-server", "none", "--metrics", "127.0.0.1:0", "--log", "json"]


def asked(address: str | None, path: str) -> tuple[int, str]:
    """The status and the body of an HTTP response."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def unavailable(address: str | None) -> dict[str, float]:
    """The values of the metric, by reason."""
    rows = [
        line for line in asked(address, "/metrics")[1].splitlines() if line.startswith("txstore_store_unavailable{")
    ]
    return {row.partition('reason="')[2].partition('"')[0]: float(row.rpartition(" ")[2]) for row in rows}


def reads_on(wire: Wire) -> None:
    """A push consumer's pull, which also sends the group's offset."""
    pulled = wire.call(PULL, pulling(sysFlag=1 | 2 | 4, commitOffset=1))
    assert (pulled.code, pulled.remark) == (0, None)


@contextmanager
def serving(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A process that serves a store, and its addresses."""
    command = [sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def failing_syncs(pid: int, log: Path) -> Iterator[None]:
    """Lets every sync of the process fail."""
    calls = "fdatasync,fsync"
    tracer = Tracer(pid, log, ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO"])
    try:
        yield
    finally:
        tracer.stop()


@needs_root
def test_full_disk_is_not_ready_until_there_is_space(small_disk: Path) -> None:
    options: dict[str, Any] = {
        "mapped_file_size_commit_log": 1 << 20,
        "max_message_size": 1 << 16,
        "max_hash_slot_num": 1000,
    }
    options |= {"max_index_num": 4000, "listen": "127.0.0.1:0", "name_server": None, "metrics": "127.0.0.1:0"}
    with txstore.serve(small_disk / "store", **options) as server:
        assert server.address is not None
        with Wire(server.address) as wire:
            assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
            assert wire.call(SEND_V2, sending(), b"x").code == 0
            assert asked(server.metrics, "/readyz") == (200, "ready\n")
            assert set(unavailable(server.metrics).values()) == {0}
            while wire.call(SEND_V2, sending(), BODY).code == 0:
                pass
            assert asked(server.metrics, "/readyz") == (503, "not ready: DiskFullError\n")
            assert asked(server.metrics, "/healthz") == (200, "alive\n")
            assert unavailable(server.metrics) == {"disk_full": 1, "poisoned": 0, "other": 0}
            reads_on(wire)
            assert wire.call(OFFSET, {"topic": "orders", "consumerGroup": "c", "queueId": 0}).fields["offset"] == "1"
            subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
            eventually(lambda: server.ready)
            assert asked(server.metrics, "/readyz")[0] == 200
            assert wire.call(SEND_V2, sending(), BODY).code == 0


@needs_strace
def test_poisoned_store_is_not_ready(tmp_path: Path) -> None:
    with serving(SERVES, str(tmp_path / "store")) as (process, addresses), Wire(addresses["broker"]) as wire:
        assert wire.call(HEARTBEAT, {}, heartbeat("c1", "c")).code == 0
        assert wire.call(SEND_V2, sending(), b"x").code == 0
        assert asked(addresses["metrics"], "/readyz")[0] == 200
        with failing_syncs(process.pid, tmp_path / "calls"):
            assert wire.call(SEND_V2, half(), b"tx").code == UNAVAILABLE
        assert asked(addresses["metrics"], "/readyz") == (503, "not ready: StorePoisonedError\n")
        assert unavailable(addresses["metrics"]) == {"disk_full": 0, "poisoned": 1, "other": 0}
        assert asked(addresses["metrics"], "/healthz")[0] == 200
        reads_on(wire)
        assert wire.call(SEND_V2, sending(), b"x").code == UNAVAILABLE


@needs_strace
def test_serve_exits_when_only_a_restart_helps(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    late = ("--set", "flush_interval_commit_log=3600")  # Only the half message syncs, so it meets the error.
    with serving(COMMAND, "serve", path, *FREE, *late) as (process, addresses), Wire(addresses["broker"]) as wire:
        assert wire.call(SEND_V2, sending(), b"x").code == 0
        with failing_syncs(process.pid, tmp_path / "calls"):
            assert wire.call(SEND_V2, half(), b"tx").code == UNAVAILABLE
        _, log = process.communicate(timeout=60)
        assert process.returncode == POISONED
        (last,) = [json.loads(line) for line in log.splitlines() if '"critical"' in line]
        assert last["error"] == "StorePoisonedError"
    with serving(COMMAND, "serve", path, *FREE) as (_, addresses), Wire(addresses["broker"]) as wire:
        assert asked(addresses["metrics"], "/readyz")[0] == 200
        assert wire.call(PULL, pulling()).code == 0
        assert wire.call(SEND_V2, half(), b"tx").code == 0
