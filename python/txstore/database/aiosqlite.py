"""aiosqlite: handles for its connections.

In:     connections.
Out:    handles.
Always: each statement waits for the connection's own thread, so one is not split into several calls.
Not here: paths and checks; those use the standard library's driver (`sqlite`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import aiosqlite

from txstore.database.session import Handle, refused
from txstore.database.sqlite import must_join
from txstore.database.statements import Statement

__all__ = ["AiosqliteHandle", "handle", "is_source"]


class AiosqliteHandle:
    """The handle of a connection."""

    asynchronous = True

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    def must_be_usable(self) -> None:
        try:
            self._connection.in_transaction  # noqa: B018
        except ValueError:
            raise refused("the aiosqlite connection is closed", "connect again before the block") from None

    async def begin(self) -> None:
        if not self._connection.in_transaction:
            await self.execute("BEGIN IMMEDIATE")

    async def join(self) -> None:
        self.must_be_usable()
        must_join(self._connection)

    def orm_session(self) -> None:
        return None

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        return False

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        if statement.changes:
            cursor = await self._connection.execute(statement.sqlite, values)
            await cursor.close()
            return cursor.rowcount, None
        rows = await self.fetch(statement, **values)
        return len(rows), rows[0][0] if rows else None

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        async with self._connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(statement.sqlite, values)
            return list(await cursor.fetchall())

    async def execute(self, sql: str) -> None:
        await (await self._connection.execute(sql)).close()

    async def dialect(self) -> str:
        return "sqlite"

    def mark(self, row: Statement | None = None, **values: object) -> None:
        """Does nothing, because a connection does not name its transactions."""

    def kept(self) -> bool:
        return False

    async def commit(self) -> None:
        if self._connection.in_transaction:
            await self.execute("COMMIT")

    async def rollback(self) -> None:
        if self._connection.in_transaction:
            await self.execute("ROLLBACK")

    async def close(self) -> None:
        await self._connection.close()


def handle(session: object) -> Handle | None:
    return AiosqliteHandle(session) if isinstance(session, aiosqlite.Connection) else None


def is_source(source: object) -> bool:
    """Returns False: a check needs a connection of its own, not the user's."""
    return False
