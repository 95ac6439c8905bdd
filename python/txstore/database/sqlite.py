"""SQLite: handles for the standard library's connections.

In:     `sqlite3.Connection`, in any of its transaction modes, or a path.
Out:    handles.
Always: a block holds SQLite's write lock from its beginning (BEGIN IMMEDIATE), so it waits there, for the connection's
        busy timeout, and not later.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from txstore.database.session import Handle, refused
from txstore.database.statements import Statement

__all__ = ["SqliteHandle", "executed", "handle", "is_source", "must_join", "opened"]

_BUSY_SECONDS = 5.0


class SqliteHandle:
    """The handle of a sqlite3 connection."""

    asynchronous = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def must_be_usable(self) -> None:
        try:
            self._connection.in_transaction  # noqa: B018
            self._connection.total_changes  # noqa: B018
        except sqlite3.ProgrammingError:
            raise refused("the sqlite3 connection is closed", "connect again before the block") from None

    async def begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    async def join(self) -> None:
        self.must_be_usable()
        must_join(self._connection)

    def orm_session(self) -> None:
        return None

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        return False

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        return executed(self._connection, statement, values)

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(statement.sqlite, values).fetchall()
        finally:
            cursor.close()

    async def execute(self, sql: str) -> None:
        self._connection.execute(sql).close()

    async def dialect(self) -> str:
        return "sqlite"

    def mark(self, row: Statement | None = None, **values: object) -> None:
        """Does nothing, because a connection does not name its transactions."""

    def kept(self) -> bool:
        return False

    async def commit(self) -> None:
        if getattr(self._connection, "autocommit", None) is not True:
            self._connection.commit()
        elif self._connection.in_transaction:  # In this mode of Python 3.12, commit() does nothing.
            self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        if getattr(self._connection, "autocommit", None) is not True:
            self._connection.rollback()
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    async def close(self) -> None:
        self._connection.close()


def must_join(connection: Any) -> None:
    """Raises InvalidOptionError if a connection commits each statement at once."""
    at_once = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    if at_once and not connection.in_transaction:
        raise refused(
            f"the {type(connection).__module__.split('.')[0]} connection commits each statement at once, and no "
            "transaction has begun",
            'connection.execute("BEGIN") before send(), or connect without isolation_level=None',
        )


def executed(connection: sqlite3.Connection, statement: Statement, values: dict[str, object]) -> tuple[int, Any]:
    """Returns how many rows a statement changed, and the first value found, whatever the connection's row factory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        cursor.execute(statement.sqlite, values)
        if statement.changes:
            return cursor.rowcount, None
        row = cursor.fetchone()
        value = None if row is None else row[0]
        return cursor.rowcount, value.decode() if isinstance(value, bytes) else value
    finally:
        cursor.close()


def handle(session: object) -> Handle | None:
    return SqliteHandle(session) if isinstance(session, sqlite3.Connection) else None


def is_source(source: object) -> bool:
    """Returns False: a connection belongs to one thread, and checks run in others."""
    return False


async def opened(path: str, make: bool) -> Handle:
    """Opens a connection to a file. A missing file is an error, unless `make` creates it."""
    uri = path if path.startswith("file:") else Path(path).absolute().as_uri() + f"?mode={'rwc' if make else 'rw'}"
    return SqliteHandle(sqlite3.connect(uri, timeout=_BUSY_SECONDS, isolation_level=None, uri=True))
