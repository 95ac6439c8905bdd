"""Guards streams over the network against kills: of the query, and of the server that it reads.

Each row is in the files of the sink once, whatever was killed when. `SIGKILL` is real, for driver, Java and workers.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.remoting_client.brokers import Serve
from tests.waiting import eventually
from txstore import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.kill]

QUERY_KILLS = int(os.environ.get("TXSTORE_NETWORK_QUERY_KILLS", "10"))
SERVER_KILLS = int(os.environ.get("TXSTORE_NETWORK_SERVER_KILLS", "5"))
ROWS = int(os.environ.get("TXSTORE_KILL_ROWS", "2000000"))
ROOT = Path(__file__).resolve().parents[2]


def build(store: Path) -> None:
    with txstore.open(store, mapped_file_size_commit_log=1 << 24) as broker:
        producer = broker.producer("producers")
        batch = [Message("orders", b"%d" % number) for number in range(1_000)]
        for _ in range(ROWS // len(batch)):
            producer.send_batch(batch)


class Query:
    """The query as a process with all that it starts."""

    def __init__(self, server: Serve, work: Path, rows: int = ROWS // 60) -> None:
        self._work = work
        folders = str(work / "checkpoint"), str(work / "out")
        command = [sys.executable, "-m", "tests.spark.query", server.names, *folders, str(rows)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"started\n"

    @property
    def committed(self) -> int:
        """Micro-batches that are done, by the checkpoint."""
        folder = self._work / "checkpoint" / "commits"
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def advance(self) -> None:
        """Waits until two more micro-batches are done, or the query has ended."""
        before = self.committed
        eventually(lambda: self.has_ended or self.committed > before + 1, seconds=300)

    def wait(self) -> int:
        """Waits for the end. Returns the exit code."""
        with self._process:
            return self._process.wait(timeout=1_800)

    def kill(self) -> None:
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)


def test_killed_queries_and_servers_lose_no_row_and_show_none_twice(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("TXSTORE_SEED", time.time_ns() % 1_000_000))
    print(f"TXSTORE_SEED={seed}")
    chance = random.Random(seed)
    build(tmp_path / "store")
    server = Serve(tmp_path / "store", mapped_file_size_commit_log=1 << 24)
    server.start()
    victims = ["query"] * QUERY_KILLS + ["server"] * SERVER_KILLS
    chance.shuffle(victims)
    query = Query(server, tmp_path)
    try:
        for number, victim in enumerate(victims, 1):
            query.advance()
            time.sleep(chance.random() * 0.5)
            if query.has_ended:
                # Only a server that was gone may end it; then it is started again, as a supervisor does.
                assert query.wait() != 0, "the query came to its end before it was killed: take more rows"
                query = Query(server, tmp_path)
                query.advance()
            if victim == "server":
                server.kill()
                server.start()
            else:
                query.kill()
                query = Query(server, tmp_path)
            print(f"kill {number}: {victim}, {query.committed} micro-batches committed", flush=True)
        # What is left, in large micro-batches.
        query.kill()
        query = Query(server, tmp_path, ROWS)
        assert query.wait() == 0
    finally:
        if not query.has_ended:
            query.kill()
        server.kill()
    sums = "sum(physical_offset)", "sum(size)"
    frame = spark.read.parquet(str(tmp_path / "out"))
    totals = frame.selectExpr("count(*)", "count(distinct physical_offset)", *sums).first()
    scan = spark.read.format("txstore").option("columns", "physical_offset,size").load(str(tmp_path / "store"))
    assert totals is not None
    print(f"{totals[0]} rows, {totals[1]} distinct")
    assert totals[0] == totals[1] == ROWS
    assert totals[2:] == scan.selectExpr(*sums).first()
    shutil.rmtree(tmp_path)
