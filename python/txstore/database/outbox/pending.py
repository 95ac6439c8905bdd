"""Pending: the messages that an open transaction has sent so far, for tests that then roll it back.

In:     the session in whose transaction `send` was called.
Out:    its messages, in the order of sending.
Always: only reads. A row counts only if its own transaction inserted it: not those of other transactions, and not those
        that are committed and wait to be forwarded.

PostgreSQL knows which transaction, or savepoint, inserted a row. SQLite does not, but it has one writer: while this
transaction has rows that are not committed, no other connection can commit. So its own are those that another
connection does not see, unless something was committed meanwhile. On MariaDB, its own are those that another connection
does not see as committed, and then sees as not committed.
"""

import heapq
import sqlite3
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from txstore._native import OutboxRow
from txstore.database.outbox.ids import ids_of
from txstore.database.rows import TableError, table_is_missing
from txstore.database.session import Handle
from txstore.database.statements import (
    READ_UNCOMMITTED,
    SELECT_IDENTITY,
    SELECT_NUMBERS,
    SELECT_OWN_POSTGRES,
    SELECT_WAITING,
    SQLITE_FILES,
)
from txstore.serialization import Serializer, decode

__all__ = ["PendingMessage", "pending_messages", "seen_by_others"]

T = TypeVar("T")
_LOOKS = 10  # At an SQLite database to which others write: then nothing is pending.
_ARGUMENTS = frozenset(("TAGS", "KEYS", "DELAY", "TIMER_DELIVER_MS", "__SHARDINGKEY", "UNIQ_KEY"))
"""Properties with a field of their own."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that an open transaction has sent. It becomes visible if the transaction commits."""

    message_id: str
    """The unique id, as in the receipt of `send`."""
    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    """The application's own properties."""
    message_group: str | None
    delay_level: int
    deliver_at: datetime | None
    """When it is delivered, in UTC; None for at once or by the delay level."""
    flag: int
    producer_group: str
    queue_id: int | None
    """None if it is chosen when the message is forwarded."""
    born_timestamp: datetime
    """When `send` was called."""

    def value(self, kind: type[T], *, serializer: Serializer | None = None) -> T:
        """Returns the body's value as a `kind`, as `Message.value` does. Raises DecodeError, InvalidOptionError."""
        return decode(self, kind, serializer)


async def pending_messages(
    handle: Handle, identity: str, where: str, others: Callable[[], Awaitable[tuple[Set[int], Set[int]]]]
) -> list[PendingMessage]:
    """Returns what the handle's transaction has sent. `others` executes `seen_by_others` on another connection.

    Raises InvalidOptionError for a session that `send` refuses, TableError for one on another database than `where`.
    """
    await handle.join()
    try:
        _, found = await handle.run(SELECT_IDENTITY)
    except Exception as error:
        if table_is_missing(error):
            raise TableError.elsewhere(where) from error
        raise
    if found != identity:
        raise TableError.elsewhere(where)
    dialect = await handle.dialect()
    if dialect == "sqlite":
        rows = await _own_on_sqlite(handle)
    elif dialect == "mariadb":
        visible = await handle.fetch(SELECT_WAITING)
        committed, written = await others()
        rows = [row for row in visible if row[0] not in committed and row[0] in written]
    else:
        rows = await handle.fetch(SELECT_OWN_POSTGRES)
    # Ids of one owner are in the order of sending. There are several owners only if there are several stores.
    owners: dict[int, list[PendingMessage]] = {}
    for row_id, message in sorted(rows, key=lambda row: int(row[0])):
        owners.setdefault(ids_of(row_id).start, []).append(_message_of(OutboxRow(bytes(message))))
    return list(heapq.merge(*owners.values(), key=lambda one: one.born_timestamp))


async def seen_by_others(handle: Handle) -> tuple[Set[int], Set[int]]:
    """Returns the rows that a connection to MariaDB sees: those that are committed, then those that are written.

    In this order, because a row that the forwarder deletes in between is then in neither.
    """
    committed = {row_id for (row_id,) in await handle.fetch(SELECT_NUMBERS)}
    await handle.rollback()
    await handle.execute(READ_UNCOMMITTED)
    written = {row_id for (row_id,) in await handle.fetch(SELECT_NUMBERS)}
    await handle.rollback()
    return committed, written


async def _own_on_sqlite(handle: Handle) -> Sequence[Sequence[Any]]:
    [file] = [file for _, name, file in await handle.fetch(SQLITE_FILES) if name == "main"]
    uri = f"{Path(file).as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as other:
        for _ in range(_LOOKS):
            version = other.execute("PRAGMA data_version").fetchone()
            committed = {row_id for (row_id,) in other.execute("SELECT id FROM txstore_outbox")}
            rows = [row for row in await handle.fetch(SELECT_WAITING) if row[0] not in committed]
            # It changes with each commit of another connection.
            if other.execute("PRAGMA data_version").fetchone() == version:
                return rows
    return []


def _message_of(row: OutboxRow) -> PendingMessage:
    properties = dict(pair.split("\x01", 1) for pair in row.properties_text.split("\x02") if pair)
    return PendingMessage(
        message_id=row.message_id,
        topic=row.topic,
        body=row.body,
        tags=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties={name: value for name, value in properties.items() if name not in _ARGUMENTS},
        message_group=row.message_group,
        delay_level=row.delay_level,
        deliver_at=row.deliver_at,
        flag=row.flag,
        producer_group=row.producer_group,
        queue_id=row.queue_id,
        born_timestamp=row.born_timestamp,
    )
