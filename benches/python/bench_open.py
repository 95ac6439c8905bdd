"""Measures opening: clean stores, empty and of 100,000 messages; and one that a killed process left."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import txstore
from benches.python import states

MESSAGES = 100_000


def _open_and_close(store: Path) -> None:
    txstore.open(store).close()


@pytest.mark.benchmark(group="open and close")
@pytest.mark.parametrize("messages", [0, MESSAGES])
def bench_open_clean(benchmark: Any, tmp_path: Path, messages: int) -> None:
    store = tmp_path / "store"
    states.filled(store, messages=messages)
    benchmark.pedantic(_open_and_close, (store,), rounds=10, warmup_rounds=1)


@pytest.mark.benchmark(group="open and close")
def bench_open_after_kill(benchmark: Any, tmp_path: Path) -> None:
    crashed, store = tmp_path / "crashed", tmp_path / "store"
    states.filled(crashed, messages=MESSAGES, crash=True)

    def as_left() -> None:
        shutil.rmtree(store, ignore_errors=True)
        states.copied(crashed, store)

    benchmark.pedantic(_open_and_close, (store,), setup=as_left, rounds=5)
