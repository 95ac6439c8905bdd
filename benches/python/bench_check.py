"""Measures one check round over pending transactions, and listing all of them."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from benches.python import rounds, states

HALVES, PENDING = 100_000, 1_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[txstore.EmbeddedBroker]:
    store: Path = tmp_path_factory.mktemp("check") / "store"
    states.filled(store, halves=HALVES, pending=PENDING)
    with txstore.open(store, transaction_timeout=timedelta(0)) as broker:
        rounds.stop_own(broker)
        yield broker


@pytest.mark.benchmark(group=f"{PENDING:,} of {HALVES:,} halves pending")
def bench_round(benchmark: Any, broker: txstore.EmbeddedBroker) -> None:
    def due() -> None:
        rounds.make_due(broker, PENDING)

    benchmark.pedantic(rounds.round_seconds, (broker, PENDING), setup=due, rounds=20)


@pytest.mark.benchmark(group=f"{PENDING:,} of {HALVES:,} halves pending")
def bench_list(benchmark: Any, broker: txstore.EmbeddedBroker) -> None:
    assert len(benchmark.pedantic(broker.transactions, rounds=20)) == PENDING
