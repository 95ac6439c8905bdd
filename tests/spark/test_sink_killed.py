"""Guards the sink over kills: whenever the writing process, or the server, is killed, each row is visible once.

The program is killed at each point of the protocol, many times, and written again as Spark would. `SIGKILL` is real.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txstore
from tests.remoting_client.brokers import Serve
from tests.waiting import eventually

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")
pytest.importorskip("pyspark", reason="pyspark is not installed: make installs requirements-dev.lock")

pytestmark = [pytest.mark.spark, pytest.mark.torture]

KILLS = int(os.environ.get("TXSTORE_SINK_KILLS", "10"))
ROWS = 2_500


def run(server: Serve, done: Path, batches: int, point: str) -> int:
    """Runs the program until it ends; returns its exit code."""
    from tests.spark.sink_program import POINTS

    assert point in (*POINTS, "-")
    command = [sys.executable, "-m", "tests.spark.sink_program"]
    arguments = [server.names, str(done), str(batches), str(ROWS), point]
    return subprocess.run([*command, *arguments], check=False, cwd=Path(__file__).resolve().parents[2]).returncode


def visible(store: Path) -> list[int]:
    with txstore.open(store, read_only=True) as broker:
        found: list[int] = []
        for extent in broker.queues("paid"):
            at = extent.first
            while at < extent.end:
                messages, at = broker.read("paid", extent.queue_id, at, 1_000)
                found += [int(message.body) for message in messages]
    return sorted(found)


def is_settled(store: Path) -> bool:
    with txstore.open(store, read_only=True) as broker:
        return not broker.transactions("pending")


def test_each_row_is_visible_once_wherever_the_writer_is_killed(tmp_path: Path) -> None:
    from tests.spark.sink_program import POINTS

    server, done = Serve(tmp_path / "store", mapped_file_size_commit_log=1 << 24), tmp_path / "done"
    server.start()
    try:
        batches = 0
        for point in itertools.chain.from_iterable([POINTS] * KILLS):
            batches += 1
            assert run(server, done, batches, point) == -signal.SIGKILL
            assert run(server, done, batches, "-") == 0
            assert len(done.read_text()) == batches
        assert visible(server.store) == list(range(batches * ROWS))
        eventually(lambda: is_settled(server.store))
        assert visible(server.store) == list(range(batches * ROWS))
    finally:
        server.kill()


def test_each_row_is_visible_once_when_the_server_is_killed(tmp_path: Path) -> None:
    server, done = Serve(tmp_path / "store", mapped_file_size_commit_log=1 << 24), tmp_path / "done"
    server.start()
    try:
        command = [sys.executable, "-m", "tests.spark.sink_program", server.names, str(done), "40", str(ROWS), "-"]
        for kill in range(5):
            with subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2]) as program:
                before = len(done.read_text()) if done.exists() else 0
                eventually(lambda before=before: done.exists() and len(done.read_text()) > before + 1)  # type: ignore[misc]
                server.kill()
                server.start()
                # It waits for the server, or ends with an error and is started again, as Spark does it.
                if kill % 2:
                    program.kill()
                program.wait()
        assert run(server, done, 40, "-") == 0
        assert visible(server.store) == list(range(40 * ROWS))
        eventually(lambda: is_settled(server.store))
    finally:
        server.kill()
