"""Measures appends of messages of 1 KiB one by one, in batches, from two threads, durably; with comparisons.

pytest-benchmark shows times of a whole load; within a group the number in brackets is the ratio to the fastest.
"""

from collections.abc import Callable
from typing import Any

import pytest

from benches.python import loads, peers

COUNT = 50_000
DURABLE = 2_000


def _pwrite(count: int) -> float:
    return peers.limit("pwrite", count, loads.record_bytes())


def _fdatasync(count: int) -> float:
    return peers.limit("fdatasync", count, loads.record_bytes())


@pytest.mark.benchmark(group=f"append {COUNT:,} messages, ASYNC_FLUSH, store created and closed")
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(loads.send, id="send"),
        pytest.param(loads.append, id="store.append"),
        pytest.param(loads.send_batch, id="send_batch of 100"),
        pytest.param(lambda count: loads.append(count, threads=2), id="store.append, 2 threads"),
        pytest.param(peers.sqlite_insert, id="peer: sqlite3 WAL OFF"),
        pytest.param(_pwrite, id="limit: pwrite"),
    ],
)
def bench_append(benchmark: Any, load: Callable[[int], float]) -> None:
    benchmark.extra_info["per_second"] = benchmark.pedantic(load, (COUNT,), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group=f"append {DURABLE:,} messages, SYNC_FLUSH, store created and closed")
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda count: loads.append(count, flush_disk_type="SYNC_FLUSH"), id="1 thread"),
        pytest.param(lambda count: loads.append(count, threads=64, flush_disk_type="SYNC_FLUSH"), id="64 threads"),
        pytest.param(lambda count: peers.sqlite_insert(count, "FULL"), id="peer: sqlite3 WAL FULL"),
        pytest.param(
            lambda count: peers.limit("fdatasync", count, loads.record_bytes()), id="limit: pwrite, fdatasync"
        ),
    ],
)
def bench_append_durably(benchmark: Any, load: Callable[[int], float]) -> None:
    benchmark.extra_info["per_second"] = benchmark.pedantic(load, (DURABLE,), rounds=3, warmup_rounds=1)
