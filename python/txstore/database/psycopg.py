"""psycopg 3: handles for its connections, blocking and asyncio, in autocommit mode or not.

In:     `psycopg.Connection`, `psycopg.AsyncConnection`, or a postgresql:// URL.
Out:    handles.
Always: a connection inside `connection.transaction()` is refused, because that block would end after ours. If possible,
        the statements of a block are sent together with the user's BEGIN and COMMIT, because a round trip costs more
        than the statement. This uses libpq's pipeline mode, entered and left within one call.
"""

from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors, generators
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from txstore.database.session import Handle, RowGoneError, refused
from txstore.database.statements import Statement

__all__ = ["AsyncPsycopgHandle", "PsycopgHandle", "handle", "is_source", "opened"]

_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_PREPARED: WeakKeyDictionary[Any, set[bytes]] = WeakKeyDictionary()
"""The statements prepared on the users' connections. A rollback by psycopg, or DISCARD, may have dropped them since."""


class _Base:
    """The common part of both handles."""

    def __init__(self, connection: Any, *, own: bool = False) -> None:
        self._connection = connection
        # A check's two statements must each see what was committed before, whatever the database's default level is.
        self._begin = "BEGIN ISOLATION LEVEL READ COMMITTED" if own else "BEGIN"
        self._row: tuple[Statement, dict[str, object]] | None = None
        """The row that `commit` checks for."""

    def must_be_usable(self) -> None:
        connection = self._connection
        if connection.closed:
            raise refused("the psycopg connection is closed", "connect again before the block")
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            raise refused("the connection's transaction has failed", "connection.rollback() before the block")
        if getattr(connection, "_num_transactions", 0):
            raise refused(
                "the connection is inside connection.transaction(), whose end would come after the message's",
                "leave connection.transaction() out: the block begins and commits",
            )

    async def dialect(self) -> str:
        return "postgresql"

    def orm_session(self) -> None:
        return None

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        return False

    def mark(self, row: Statement | None = None, **values: object) -> None:
        """Remembers the row for `commit`, because a connection does not name its transactions."""
        self._row = None if row is None else (row, values)

    def kept(self) -> bool:
        status = self._connection.pgconn.transaction_status
        return self._row is not None and status == TransactionStatus.INTRANS and self._takes_several()

    async def join(self) -> None:
        connection = self._connection
        status = connection.pgconn.transaction_status
        if connection.closed:
            raise refused("the psycopg connection is closed", "connect again before send()")
        if status == TransactionStatus.INERROR:
            raise refused("the connection's transaction has failed", "roll it back before send()")
        if connection.autocommit and status == TransactionStatus.IDLE:
            raise refused(
                "the psycopg connection commits each statement at once, and no transaction has begun",
                "`with connection.transaction():` around send(), or connect without autocommit=True",
            )

    def _must_begin(self) -> bool:
        idle = self._connection.pgconn.transaction_status == TransactionStatus.IDLE
        return bool(idle and self._connection.autocommit)

    def _takes_several(self) -> bool:
        """Tells whether statements may be sent together: no pipeline of the user's is open, psycopg prepares
        statements (with some poolers it must not), and psycopg would allow a commit."""
        connection = self._connection
        return bool(
            _has_pipelines()
            and connection.pgconn.pipeline_status == PipelineStatus.OFF
            and connection.prepare_threshold is not None
            and not getattr(connection, "_num_transactions", 0)
            and not getattr(connection, "_tpc", None)
        )

    def _begins(self) -> bool:
        """Tells whether psycopg would send a plain BEGIN before the next statement, so that both may go together."""
        connection = self._connection
        return bool(
            not connection.autocommit
            and connection.pgconn.transaction_status == TransactionStatus.IDLE
            and connection.isolation_level is None
            and connection.read_only is None
            and connection.deferrable is None
            and self._takes_several()
        )

    def _begin_with(self, statement: Statement, values: dict[str, object]) -> Generator[Any, Any, int | None]:
        """Sends BEGIN together with a statement and returns how many rows it changed.

        Returns None if the server's prepared statements differ from the remembered ones; then roll back and execute it
        in the usual way. The statement is prepared, because planning takes longer than a round trip.
        """
        pgconn, name = self._connection.pgconn, statement.name
        prepared = _PREPARED.setdefault(self._connection, set())
        sends = [partial(pgconn.send_query_params, b"BEGIN", None)]
        if name not in prepared:
            sends.append(partial(pgconn.send_prepare, name, statement.numbered))
        sends.append(partial(pgconn.send_query_prepared, name, self._bound(statement, values)))
        results = yield from _together(pgconn, sends)
        if len(sends) > 2 and results[1].status in _DONE:
            prepared.add(name)
        try:
            self._raise_first(results)
        except errors.InvalidSqlStatementName:
            prepared.discard(name)
            return None
        except errors.DuplicatePreparedStatement:
            prepared.add(name)
            return None
        return results[-1].command_tuples or 0

    def _commit_with(self, statement: Statement, values: dict[str, object]) -> Generator[Any, Any, None]:
        """Sends the statement together with COMMIT, which the server skips if the statement fails. It is not prepared:
        the user may have dropped a prepared statement inside the block, and nothing else may fail here."""
        pgconn = self._connection.pgconn
        look = partial(pgconn.send_query_params, statement.numbered, self._bound(statement, values))
        results = yield from _together(pgconn, [look, partial(pgconn.send_query_params, b"COMMIT", None)])
        try:
            self._raise_first(results)
        except errors.DivisionByZero as error:
            raise RowGoneError from error

    def _bound(self, statement: Statement, values: dict[str, object]) -> list[bytes]:
        encoding = self._connection.info.encoding
        return [_as_text(values[name], encoding) for name in statement.order]

    def _raise_first(self, results: Sequence[Any]) -> None:
        for result in results:
            if result.status not in _DONE:
                raise errors.error_from_result(result, encoding=self._connection.info.encoding)


@cache
def _has_pipelines() -> bool:
    """Tells whether libpq is new enough."""
    return psycopg.Pipeline.is_supported()


def _together(pgconn: Any, sends: Sequence[Callable[[], None]]) -> Generator[Any, Any, list[Any]]:
    """Sends statements as one message and returns their results. After a failed one, the server skips the rest."""
    pgconn.enter_pipeline_mode()
    for send in sends:
        send()
    pgconn.pipeline_sync()
    yield from generators.send(pgconn)
    results = []
    for _ in sends:
        found = yield from generators.fetch_many(pgconn)
        results.append(found[-1])
    yield from generators.fetch_many(pgconn)  # The end of the message.
    pgconn.exit_pipeline_mode()
    return results


def _as_text(value: object, encoding: str) -> bytes:
    return b"\\x" + value.hex().encode() if isinstance(value, bytes) else str(value).encode(encoding)


def _first(row: Any) -> Any:
    return None if row is None else row[0]


class PsycopgHandle(_Base):
    """A handle of a psycopg connection."""

    asynchronous = False

    async def begin(self) -> None:
        if self._must_begin():
            self._connection.execute(self._begin)

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        if statement.changes and self._begins():
            with self._connection.lock:
                changed = self._connection.wait(self._begin_with(statement, values))
            if changed is not None:
                return changed, None
            self._connection.rollback()
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(statement.pyformat, values)
            return cursor.rowcount, None if cursor.description is None else _first(cursor.fetchone())

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            return cast("Sequence[Sequence[Any]]", cursor.execute(statement.pyformat, values).fetchall())

    async def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    async def commit(self) -> None:
        row, self._row = self._row if self.kept() else None, None
        if row is None:
            self._connection.commit()
            return
        with self._connection.lock:
            self._connection.wait(self._commit_with(*row))

    async def rollback(self) -> None:
        self._row = None
        self._connection.rollback()

    async def close(self) -> None:
        self._connection.close()


class AsyncPsycopgHandle(_Base):
    """A handle of an async psycopg connection."""

    asynchronous = True

    async def begin(self) -> None:
        if self._must_begin():
            await self._connection.execute(self._begin)

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        if statement.changes and self._begins():
            async with self._connection.lock:
                changed = await self._connection.wait(self._begin_with(statement, values))
            if changed is not None:
                return changed, None
            await self._connection.rollback()
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.pyformat, values)
            return cursor.rowcount, None if cursor.description is None else _first(await cursor.fetchone())

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.pyformat, values)
            return cast("Sequence[Sequence[Any]]", await cursor.fetchall())

    async def execute(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def commit(self) -> None:
        row, self._row = self._row if self.kept() else None, None
        if row is None:
            await self._connection.commit()
            return
        async with self._connection.lock:
            await self._connection.wait(self._commit_with(*row))

    async def rollback(self) -> None:
        self._row = None
        await self._connection.rollback()

    async def close(self) -> None:
        await self._connection.close()


def handle(session: object) -> Handle | None:
    if isinstance(session, psycopg.Connection):
        return PsycopgHandle(session)
    return AsyncPsycopgHandle(session) if isinstance(session, psycopg.AsyncConnection) else None


def is_source(source: object) -> bool:
    """Returns False: a check needs a connection of its own, not the user's."""
    return False


async def opened(url: str) -> Handle:
    """Opens a new connection."""
    return PsycopgHandle(psycopg.connect(url, autocommit=True), own=True)
