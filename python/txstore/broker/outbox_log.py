"""Outbox log: the log of an open store, as the forwarder of an outbox uses it.

In:     rows of an outbox.
Out:    messages in the log, and up to where it is durable.
Not here: which rows are committed (`txstore.database.outbox`).
"""

import zlib
from collections.abc import Sequence

from txstore._native import OutboxRow, Store
from txstore.producer.outbox import Fate

__all__ = ["StoreLog", "destination_of"]

_TAKE_OVER_SECONDS = 10.0


class StoreLog:
    """The log of an open store. See `OutboxLog`."""

    is_remote = False
    appends_once = True
    remembered_as: tuple[str, str] | None = None
    take_over_seconds = _TAKE_OVER_SECONDS

    def __init__(self, store: Store) -> None:
        self._store = store
        self.destination = destination_of(store.store_id)
        self.append = store.append_row

    def append_many(self, rows: Sequence[OutboxRow], queue_ids: Sequence[int], *, once: bool) -> Sequence[Fate]:
        return self._store.append_rows(rows, queue_ids, once=once)

    def appended_end(self) -> int:
        return self._store.appended_end

    def durable_end(self) -> int:
        return self._store.durable_end

    def make_durable(self) -> None:
        self._store.flush()


def destination_of(store_id: str | None) -> int:
    """Returns the number of a store's log, which is the same for its clients."""
    return zlib.crc32((store_id or "").encode()) >> 1
