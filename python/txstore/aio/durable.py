"""Waits for syncs on an event loop, without a thread for each wait.

::

    task: write ──► wait(end) ─┐  once in a turn of the loop     thread of the engine: sync
    task: write ──► wait(end) ─┼──► request_sync(highest end) ──►         │
    task: write ──► wait(end) ─┘                                          ▼
    tasks continue ◄── futures of all ends that are durable ◄── file descriptor is readable

In:     ends of the log that must be durable.
Out:    a future for each.
Always: used on the loop's thread. One sync serves all writes of a turn of the loop, and those that came during the last
        sync. Between groups of futures, other tasks run.
"""

import asyncio
from collections import deque

from txstore._native import LoopStore
from txstore.errors import StoreClosedError, TxStoreError

__all__ = ["Durable"]

_GROUP = 32  # So many tasks run for half a millisecond before the loop looks at its timers and sockets again.


class Durable:
    """The waits of one loop for one store."""

    def __init__(self, store: LoopStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        # Nearly in the order of the ends: that of a half message that is sent again waits for those before it, too.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._highest = 0
        self._is_requesting = False
        self._is_resolving = False
        self._closed = False
        loop.add_reader(store.fileno(), self._synced)

    def wait(self, end: int) -> asyncio.Future[None]:
        """Returns a future that is done once the log is durable up to `end`. It may be cancelled.

        Its exception is the error of the sync, or StoreClosedError.
        """
        future = self._loop.create_future()
        if self._closed:
            future.set_exception(_closed())
            return future
        self._waiting.append((end, future))
        self._highest = max(self._highest, end)
        if not self._is_requesting:
            self._is_requesting = True
            self._loop.call_soon(self._request)
        return future

    def close(self) -> None:
        """Ends the thread that syncs, and all waits: with StoreClosedError unless the log is durable. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._store.fileno())
        self._store.stop()
        durable = self._store.durable_end
        while self._waiting:
            end, future = self._waiting.popleft()
            if not future.done():
                if end <= durable:
                    future.set_result(None)
                else:
                    future.set_exception(_closed())

    def _request(self) -> None:
        self._is_requesting = False
        self._store.request_sync(self._highest)

    def _synced(self) -> None:
        """Called by the loop after a sync."""
        if not self._is_resolving:
            self._resolve()

    def _resolve(self) -> None:
        """Resolves the futures of a group of durable ends, and continues after other tasks have run."""
        self._is_resolving = False
        waiting = self._waiting
        try:
            durable = self._store.durable()
        except TxStoreError:
            self._fail()
            return
        for _ in range(_GROUP):
            if not waiting or waiting[0][0] > durable:
                return
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)
        if waiting:
            self._is_resolving = True
            self._loop.call_soon(self._resolve)

    def _fail(self) -> None:
        """Ends all waits with the error of the failed sync. Each gets an exception of its own, which tells where."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.done():
                continue
            try:
                self._store.durable()
            except TxStoreError as error:
                future.set_exception(error)


def _closed() -> StoreClosedError:
    return StoreClosedError(
        "the broker was closed before the message was on disk\nhint: it may be stored all the same; close the broker "
        "after the tasks that send"
    )
