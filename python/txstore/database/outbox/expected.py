"""Expected: the rows of open transactions, whose commits a forwarder looks for.

In:     rows that this process inserts.
Out:    the same, when they were read as committed.
Always: rows are in memory up to a limit; others are read from the table. A row adds no object that Python's garbage
        collector counts and visits: its collections would cost more than all other work here.
Not here: who looks for commits (`forwarder`).
"""

from txstore._native import OutboxRow
from txstore.database.outbox.appending import Row

__all__ = ["Expected"]

_BYTES = 16 << 20  # In memory.


class Expected:
    """Rows by id. Not thread-safe."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        """Since when their commits are looked for."""
        self._rows: dict[int, OutboxRow] = {}
        self._queue_ids: dict[int, int] = {}
        """The queues of rows in memory that are chosen."""
        self._sequences: dict[int, int] = {}
        """The `group_seq` of rows in memory that have one."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._since)

    def add(
        self, row_id: int, row: OutboxRow | None, queue_id: int | None, since: float, *, group_seq: int = 0
    ) -> None:
        """Looks for the commit of a row. Keeps it in memory if there is room."""
        self._since[row_id] = since
        if row is None or self._bytes >= _BYTES:
            return
        self._rows[row_id] = row
        self._bytes += len(row.data)
        if queue_id is not None:
            self._queue_ids[row_id] = queue_id
        if group_seq:
            self._sequences[row_id] = group_seq

    def pop(self, row_id: int) -> Row:
        """Removes a row. One that is unknown, or not in memory, is only an id."""
        self._since.pop(row_id, None)
        row = self._rows.pop(row_id, None)
        if row is None:
            return Row(row_id, None, None, 0)
        self._bytes -= len(row.data)
        group_seq = self._sequences.pop(row_id, 0) if self._sequences else 0
        return Row(row_id, row, row.message_group, group_seq, self._queue_ids.pop(row_id, None))

    def first(self) -> int | None:
        """Returns the smallest id; None if there is no row."""
        return min(self._since, default=None)

    def before(self, since: float) -> list[int]:
        """Returns the rows whose commits are looked for since an earlier time."""
        return [row_id for row_id, began in self._since.items() if began < since]
