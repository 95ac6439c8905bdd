"""Waiting: the rows of an outbox as an operator sees them, and what may be done with parked ones.

In:     a handle of the database.
Out:    what waits, oldest first for each process that wrote it.
Always: only a parked row is retried or dropped, because any other is being forwarded.
Not here: forwarding.
"""

from collections.abc import AsyncIterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from txstore._native import OutboxRow
from txstore.database.outbox.ids import ids_of
from txstore.database.session import Handle
from txstore.database.statements import (
    COUNT_WAITING,
    DROP_PARKED,
    FIRST_WAITING,
    NEXT_ROWS,
    SELECT_IDS,
    UNPARK,
    Statement,
)
from txstore.errors import MessageNotFoundError, TxStoreError

__all__ = ["OutboxStatus", "WaitingRow", "change_parked", "outbox_status", "waiting_rows"]

_ROWS = 500  # Read in one step.


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A row of an outbox whose message is not in the log, or not known to be durable there."""

    message_id: str
    """The id that the message has in the log; the row's number if the row cannot be decoded."""
    topic: str | None
    """The topic; None if the row cannot be decoded."""
    producer_group: str | None
    message_group: str | None
    born_timestamp: datetime | None
    """When `send` was called."""
    size: int
    """The size of the row's message, in bytes."""
    parked: str | None
    """Why it cannot be sent; None if it waits for its turn."""
    number: int
    """The row's number: `txstore_outbox.id`."""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The rows that wait for one log. Not counted: parked ones, and those of this process whose messages are in the log
    and that only wait to be deleted."""

    rows: int
    """How many rows wait."""
    oldest_seconds: float
    """How long ago `send` was called for the oldest of them; 0.0 if none waits. Of each process, the row inserted first
    is looked at."""


async def outbox_status(handle: Handle, destination: int, own: range, in_log: Set[int]) -> OutboxStatus:
    """Counts the rows that wait for a log, of all processes. Those of this process are `own`, except `in_log`."""
    _, rows = await handle.run(COUNT_WAITING, destination=destination)
    await handle.rollback()
    first_own = own[0]
    if in_log:
        gone, first_own = await _own_rows(handle, own, in_log)
        rows -= gone
    born, number = [], -1
    while found_row := await handle.fetch(FIRST_WAITING, destination=destination, after=number):
        await handle.rollback()
        [(number, message)] = found_row
        if number in own and number < first_own:
            number = first_own - 1
            continue
        if (timestamp := _row(number, bytes(message), None).born_timestamp) is not None:
            born.append(timestamp)
        number = ids_of(number)[-1]
    await handle.rollback()
    seconds = (datetime.now(UTC) - min(born)).total_seconds() if born else 0.0
    return OutboxStatus(max(rows, 0), max(seconds, 0.0))


async def _own_rows(handle: Handle, own: range, in_log: Set[int]) -> tuple[int, int]:
    """Returns how many of the own rows are in the log, and the first one that is not."""
    first, gone, waits = own[0], 0, own[-1]
    while True:
        found = [number for (number,) in await handle.fetch(SELECT_IDS, first=first, last=own[-1], rows=_ROWS)]
        await handle.rollback()
        gone += sum(number in in_log for number in found)
        waits = min(waits, next((number for number in found if number not in in_log), waits))
        if len(found) < _ROWS:
            return gone, waits
        first = found[-1] + 1


async def waiting_rows(handle: Handle) -> AsyncIterator[WaitingRow]:
    """Reads all rows in steps, without keeping a lock."""
    number = -1
    while True:
        found = await handle.fetch(NEXT_ROWS, after=number, rows=_ROWS)
        await handle.rollback()
        for number, message, parked in found:
            yield _row(number, bytes(message), parked)
        if len(found) < _ROWS:
            return


def _row(number: int, message: bytes, parked: str | None) -> WaitingRow:
    size = len(message)
    try:
        row = OutboxRow(message)
    except TxStoreError:
        return WaitingRow(str(number), None, None, None, None, size, parked, number)
    group = row.message_group
    return WaitingRow(row.message_id, row.topic, row.producer_group, group, row.born_timestamp, size, parked, number)


async def change_parked(handle: Handle, message_id: str, *, drop: bool) -> WaitingRow:
    """Drops a parked row, or lets it be sent again. Raises MessageNotFoundError if no such row is parked."""
    change: Statement = DROP_PARKED if drop else UNPARK
    async for one in waiting_rows(handle):
        if one.message_id != message_id:
            continue
        await handle.begin()
        changed, _ = await handle.run(change, id=one.number)
        await handle.commit()
        if changed == 1:
            return one
        raise MessageNotFoundError(
            f"message {message_id} is not parked: it waits to be forwarded\nhint: open the store, which forwards it"
        )
    raise MessageNotFoundError(f"the outbox has no message {message_id}\nhint: `txstore outbox list` shows what waits")
