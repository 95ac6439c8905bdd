"""Guards the interpreter lock: a thread that waits for the store does not hold it, so other threads run meanwhile."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txstore._native import Message, Store

# A batch of these keeps the put lock while 128 MiB are written.
BODY = b"x" * (4 << 20)
BATCH = 32
ATTEMPTS = 5

CALLS: dict[str, Callable[[Store], Any]] = {
    "read": lambda store: store.read("t", 0, 0, 1),
    "pull": lambda store: store.pull("t", 0, 0, 1),
    "query": lambda store: store.query("t", "k"),
    "queue_range": lambda store: store.queue_range("t", 0),
    "queues": lambda store: store.queues(),
    "set_consumer_offset": lambda store: store.set_consumer_offset("t", "g", 0, 1),
    "half": lambda store: store.half(0),
    "look_again": lambda store: store.look_again(0, 1_000),
    "check_unknown": lambda store: store.check_unknown(0, 0),
    "next_due_in_ms": lambda store: store.next_due_in_ms(),
    "local_transaction_ended": lambda store: store.local_transaction_ended(0),
}


def longest_stop(store: Store, call: Callable[[Store], Any]) -> tuple[float, float]:
    """How long a thread without calls to the store was stopped, and how long the put lock was held."""
    began, done = threading.Event(), threading.Event()
    stops = [0.0]

    def tick() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            if began.is_set():
                stops[0] = max(stops[0], now - last)
            last = now

    def ask() -> None:
        while not done.is_set():
            call(store)
            time.sleep(0.001)

    threads = [threading.Thread(target=tick), threading.Thread(target=ask)]
    messages = [Message("t", BODY)] * BATCH
    for thread in threads:
        thread.start()
    began.set()
    start = time.perf_counter()
    try:
        store.append_many(messages, [1] * BATCH)
        held = time.perf_counter() - start
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return stops[0], held


@pytest.mark.parametrize("name", CALLS)
def test_thread_without_calls_to_the_store_keeps_running(tmp_path: Path, name: str) -> None:
    """While one thread appends a large batch and another one waits for it, a third one runs.

    A machine under load may stop any thread, so one good attempt is enough; with the interpreter's lock held by the
    waiting thread there is none, for it waits as long as the batch takes.
    """
    store = Store.open(str(tmp_path / "store"))
    store.append(Message("t", b"x", keys=["k"]), 0)
    store.prepare(Message("t", b"x"), 0, "g")
    tried = []
    for _ in range(ATTEMPTS):
        stop, held = longest_stop(store, CALLS[name])
        tried.append((stop, held))
        if stop < held / 2:
            break
    store.close()
    shutil.rmtree(tmp_path / "store")
    assert tried[-1][0] < tried[-1][1] / 2, f"stops, of how long the lock was held: {tried}"
