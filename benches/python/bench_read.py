"""Measures reads of messages of 1 KiB, 32 a call, the body of each, compared with SQLite and plain reads."""

from pathlib import Path
from typing import Any

import pytest

import txstore
from benches.python import loads, peers

COUNT = 100_000
GROUP = f"read {COUNT:,} messages by 32"


@pytest.mark.benchmark(group=GROUP)
def bench_read(benchmark: Any, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store") as broker:
        loads.fill(broker, COUNT)
        benchmark.pedantic(loads.read_by_32, (broker, COUNT), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group=GROUP)
def bench_peer_sqlite(benchmark: Any, tmp_path: Path) -> None:
    database = peers.sqlite_table(tmp_path / "messages.db", "OFF")
    peers.sqlite_fill(database, COUNT)
    benchmark.pedantic(peers.sqlite_read, (database, COUNT), rounds=5, warmup_rounds=1)
    database.close()
