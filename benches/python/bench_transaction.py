"""Measures half and commit, with and without the user's own insert, compared with an outbox in SQLite with its
relay.
"""

from collections.abc import Callable
from typing import Any

import pytest

from benches.python import loads, peers

COUNT = 10_000


def _pwrites(count: int) -> float:
    return peers.limit("pwrite", 2 * count, loads.transaction_bytes() // 2) / 2


@pytest.mark.benchmark(group=f"{COUNT:,} transactions, ASYNC_FLUSH, store created and closed")
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(loads.send_in_transaction, id="send_in_transaction"),
        pytest.param(loads.prepare_and_end, id="prepare, end_transaction"),
        pytest.param(loads.send_with_business, id="send_in_transaction with a SQLite insert"),
        pytest.param(peers.outbox, id="peer: SQLite outbox with relay"),
        pytest.param(peers.business_only, id="peer: the SQLite insert alone"),
        pytest.param(
            lambda count: peers.limit("pwrite", 2 * count, loads.transaction_bytes() // 2), id="limit: pwrite"
        ),
    ],
)
def bench_transaction(benchmark: Any, load: Callable[[int], float]) -> None:
    benchmark.extra_info["per_second"] = benchmark.pedantic(load, (COUNT,), rounds=5, warmup_rounds=1)
