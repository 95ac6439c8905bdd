"""psycopg 3: its connections, sync and async, in autocommit mode or not.

In: `psycopg.Connection`, `psycopg.AsyncConnection`, or a postgresql:// URL. Out: handles. Always: a connection inside
`connection.transaction()` is refused, since that block's end would come after ours.
"""

from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from txstore.database.session import Handle, refused
from txstore.database.statements import Statement

__all__ = ["AsyncPsycopgHandle", "PsycopgHandle", "handle", "is_source", "opened"]


class _Base:
    """What both share."""

    def __init__(self, connection: Any, *, own: bool = False) -> None:
        self._connection = connection
        # A check's two statements must each see what was committed before, whatever the database's default is.
        self._begin = "BEGIN ISOLATION LEVEL READ COMMITTED" if own else "BEGIN"

    def must_be_usable(self) -> None:
        connection = self._connection
        if connection.closed:
            raise refused("the psycopg connection is closed", "connect again before the block")
        if connection.info.transaction_status == TransactionStatus.INERROR:
            raise refused("the connection's transaction has failed", "connection.rollback() before the block")
        if getattr(connection, "_num_transactions", 0):
            raise refused(
                "the connection is inside connection.transaction(), whose end would come after the message's",
                "leave connection.transaction() out: the block begins and commits",
            )

    async def dialect(self) -> str:
        return "postgresql"

    def mark(self) -> None:
        """A connection does not name its transactions."""

    def kept(self) -> bool:
        return False

    def _must_begin(self) -> bool:
        idle = self._connection.info.transaction_status == TransactionStatus.IDLE
        return bool(idle and self._connection.autocommit)


def _first(row: Any) -> str | None:
    return None if row is None else cast("str", row[0])


class PsycopgHandle(_Base):
    """A handle of a psycopg connection."""

    asynchronous = False

    async def begin(self) -> None:
        if self._must_begin():
            self._connection.execute(self._begin)

    async def run(self, statement: Statement, **values: object) -> tuple[int, str | None]:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(statement.pyformat, values)
            return cursor.rowcount, None if cursor.description is None else _first(cursor.fetchone())

    async def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()

    async def close(self) -> None:
        self._connection.close()


class AsyncPsycopgHandle(_Base):
    """A handle of an async psycopg connection."""

    asynchronous = True

    async def begin(self) -> None:
        if self._must_begin():
            await self._connection.execute(self._begin)

    async def run(self, statement: Statement, **values: object) -> tuple[int, str | None]:
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.pyformat, values)
            return cursor.rowcount, None if cursor.description is None else _first(await cursor.fetchone())

    async def execute(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def close(self) -> None:
        await self._connection.close()


def handle(session: object) -> Handle | None:
    if isinstance(session, psycopg.Connection):
        return PsycopgHandle(session)
    return AsyncPsycopgHandle(session) if isinstance(session, psycopg.AsyncConnection) else None


def is_source(source: object) -> bool:
    """A connection is none: a check needs one of its own."""
    return False


async def opened(url: str) -> Handle:
    """A connection of our own."""
    return PsycopgHandle(psycopg.connect(url, autocommit=True), own=True)
