"""Measures how long a send waits at most while something else works on a store with many pending transactions.

In:     how many transactions are pending.
Out:    milliseconds, by what ran concurrently with the sends.
Always: one thread sends all the time; the concurrent work has the machine's other processor.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from txstore._native import Message, Store

_PAUSE_SECONDS = 0.0002


class Sender:
    """Sends without end, and records its longest send."""

    def __init__(self, store: Store) -> None:
        self._store, self._done, self._longest = store, False, 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done = True
        self._thread.join()

    def _run(self) -> None:
        message = Message("w", b"x")
        while not self._done:
            start = time.perf_counter()
            self._store.append(message, 0)
            self._longest = max(self._longest, time.perf_counter() - start)
            time.sleep(_PAUSE_SECONDS)

    def longest_ms_during(self, work: Callable[[], object]) -> float:
        """The longest send while `work` runs."""
        time.sleep(1)  # Earlier work has ended, and buffers are written.
        self._longest = 0.0
        work()
        time.sleep(0.05)
        return self._longest * 1000


def longest_sends_ms(folder: Path, pending: int) -> Mapping[str, float]:
    """The longest send during each kind of work, in milliseconds."""
    # No sync: the measurement is about the holder of the put lock.
    path, flush = str(folder / "store"), "ASYNC_FLUSH"
    store = Store.open(path, pending_transactions_max=2 * pending, transaction_flush_disk_type=flush)
    half = Message("orders", b"x" * 200)
    for _ in range(pending):
        store.prepare(half, 0, "g")
    store.snapshot()
    works: dict[str, Callable[[], object]] = {
        "nothing, for a second": lambda: time.sleep(1),
        "a snapshot": store.snapshot,
        "a page of 100 pending transactions": lambda: store.halves_waiting(pending // 2, 100),
        "what is pending, by topic": store.pending,
        "a query by key": lambda: store.query("orders", "k"),
        "retention's look": lambda: store.log_files(16),
    }
    with Sender(store) as sender:
        found = {name: max(sender.longest_ms_during(work) for _ in range(2)) for name, work in works.items()}
    store.close()
    return found
