"""asyncpg: handles for its connections, and for those of its pools.

In:     connections.
Out:    handles.
Always: a block begins its transaction by `connection.transaction()`, so the user's savepoints work inside it.
Not here: URLs and checks; those use psycopg.
"""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from txstore.database.session import Handle, refused
from txstore.database.statements import Statement

__all__ = ["AsyncpgHandle", "handle", "is_source"]

_BEGUN: WeakKeyDictionary[asyncpg.Connection, Any] = WeakKeyDictionary()
"""Transactions that a block began, which another block may join."""


class AsyncpgHandle:
    """The handle of a connection."""

    asynchronous = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._key = getattr(connection, "_con", connection)  # Of a pool's, the connection itself.

    def must_be_usable(self) -> None:
        self._must_be_open("the block")
        if self._connection.is_in_transaction() and self._key not in _BEGUN:
            raise refused(
                "the asyncpg connection is inside a transaction, whose end would come after the message's",
                "leave connection.transaction() out: the block begins and commits",
            )

    def _must_be_open(self, before: str) -> None:
        if self._connection.is_closed():
            raise refused("the asyncpg connection is closed", f"connect again before {before}")

    async def begin(self) -> None:
        if not self._connection.is_in_transaction():
            # Each statement sees what was committed before it, whatever the connection's level is.
            transaction = self._connection.transaction(isolation="read_committed")
            await transaction.start()
            _BEGUN[self._key] = transaction

    async def join(self) -> None:
        self._must_be_open("send()")
        if not self._connection.is_in_transaction():
            raise refused(
                "the asyncpg connection commits each statement at once, and no transaction has begun",
                "`async with connection.transaction():` around send()",
            )

    def orm_session(self) -> None:
        return None

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        return False

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        if statement.changes:
            done: str = await self._connection.execute(statement.dollar, *_bound(statement, values))
            return int(done.rsplit(" ", 1)[1]), None
        rows = await self.fetch(statement, **values)
        return len(rows), rows[0][0] if rows else None

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        rows = await self._connection.fetch(statement.dollar, *_bound(statement, values))
        return [tuple(row.values()) for row in rows]

    async def execute(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def dialect(self) -> str:
        return "postgresql"

    def mark(self, row: Statement | None = None, **values: object) -> None:
        """Does nothing: `kept` makes the block look before it commits."""

    def kept(self) -> bool:
        return False

    async def commit(self) -> None:
        begun = _BEGUN.pop(self._key, None)
        if begun is not None:
            await begun.commit()

    async def rollback(self) -> None:
        begun = _BEGUN.pop(self._key, None)
        if begun is not None:
            await begun.rollback()

    async def close(self) -> None:
        await self._connection.close()


def _bound(statement: Statement, values: dict[str, object]) -> list[object]:
    return [values[name] for name in statement.order]


def handle(session: object) -> Handle | None:
    return AsyncpgHandle(session) if isinstance(session, (asyncpg.Connection, PoolConnectionProxy)) else None


def is_source(source: object) -> bool:
    """Returns False: a check needs a connection of its own, not the user's."""
    return False
