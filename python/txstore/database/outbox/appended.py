"""Appended: the rows whose messages are in the log, until they can be deleted.

In:     rows, with the log's end after their messages.
Out:    the finished ones, whose messages are durable, in the order of the log.
Not here: who deletes them (`forwarder`).
"""

from collections import deque

__all__ = ["Appended"]

_NEVER = 1 << 63


class Appended:
    """Rows that were appended, by batch. Not thread-safe, except `first_end`."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, list[int]]] = deque()
        """With the log's end after the messages."""
        self._count = 0
        self.first_end = _NEVER
        """The log's end after the messages of the first batch. No row is finished while the durable end is below."""

    def __len__(self) -> int:
        return self._count

    def add(self, ids: list[int], end: int) -> None:
        """Adds rows whose messages end there in the log, or before."""
        if ids:
            self._batches.append((end, ids))
            self._changed(len(ids))

    def add_finished(self, ids: list[int]) -> None:
        """Adds rows whose messages are durable, before all others."""
        if ids:
            self._batches.appendleft((0, ids))
            self._changed(len(ids))

    def take(self, most: int, durable: int) -> list[int]:
        """Removes finished rows, and returns their ids; `durable` is the log's durable end."""
        taken: list[int] = []
        while self._batches and self._batches[0][0] <= durable and len(taken) < most:
            end, ids = self._batches.popleft()
            room = most - len(taken)
            taken += ids[:room]
            if len(ids) > room:
                self._batches.appendleft((end, ids[room:]))
        self._changed(-len(taken))
        return taken

    def _changed(self, more: int) -> None:
        self._count += more
        self.first_end = self._batches[0][0] if self._batches else _NEVER
