"""SQLAlchemy 2: handles for its sessions and connections, blocking and asyncio.

In:     `Session`, `Connection`, `AsyncSession`, `AsyncConnection`, their scoped forms; `Engine` or `AsyncEngine`; on
        SQLite, PostgreSQL and MariaDB.
Out:    handles.
Always: a session joins the block with its current transaction, unless a `begin()` block or a savepoint around it would
        decide later.
Not here: the ORM. Nothing is flushed before the commit.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, NullPool, TextClause, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from txstore.database.session import Handle, refused
from txstore.database.sqlite import executed
from txstore.database.statements import Statement, is_duplicate
from txstore.errors import InvalidOptionError

__all__ = ["AsyncSqlAlchemyHandle", "SqlAlchemyHandle", "engine_of", "handle", "is_source", "opened"]

# SQLAlchemy's name of the server, and ours.
_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mariadb", "mariadb": "mariadb"}
# Drivers that accept one of a Statement's texts unchanged, which saves SQLAlchemy's compilation, half of the time.
_NAMED, _PYFORMAT = ("pysqlite", "aiosqlite"), ("psycopg", "psycopg_async", "psycopg2")
_MARIADB = ("pymysql", "mysqldb", "asyncmy", "aiomysql")
_MARIADB_MIN = (10, 6)


@cache
def _clause(sql: str) -> TextClause:
    """Returns the same object each time, so that SQLAlchemy finds it compiled."""
    return text(sql)


class _Base:
    """The common part: the state of the blocking session or connection, which is also below an async one. `dispose`
    ends an engine that was made for it."""

    def __init__(self, given: Any, below: "Session | Connection", dispose: Any = None) -> None:
        self._given = given
        self._below = below
        self._dispose = dispose
        self._transaction: object = None
        self._begun: Any = None
        """The connection of the database transaction that `begin` found, until `mark` or the transaction's end."""
        self._driver: Any = None
        """The driver's connection of the user's transaction, likewise."""
        self._mariadb = self._is_sqlite3 = False

    def must_be_usable(self) -> None:
        below = self._below
        if isinstance(below, Session):
            self._must_be_bound(below)
        elif below.closed:
            raise refused("the connection is closed", "engine.connect() again before the block")
        if below.in_nested_transaction():
            raise refused("the session is inside a savepoint", "use savepoints inside the block, not around it")
        if getattr(below, "_trans_context_manager", None) is not None:
            raise refused(
                "the session is inside a begin() block, whose end would come after the message's",
                "leave begin() out, as in `with Session(engine) as session, producer.transaction(message, "
                "session=session)`: the block begins and commits",
            )

    def _must_be_alive(self) -> None:
        below = self._below
        if isinstance(below, Session):
            if not below.is_active:
                raise refused("the session's transaction has failed", "session.rollback() before send()")
        elif below.closed:
            raise refused("the connection is closed", "engine.connect() again before send()")

    def _must_be_bound(self, session: Session) -> None:
        try:
            bind = session.get_bind()
        except UnboundExecutionError:
            raise refused("the session is not bound to an engine", "Session(engine)") from None
        if isinstance(bind, Connection):
            raise refused("the session is bound to a connection, so it may not commit", "Session(engine)")
        if not session.is_active:
            raise refused("the session's transaction has failed", "session.rollback() before the block")

    def orm_session(self) -> tuple[Session, Any] | None:
        if not isinstance(self._below, Session):
            return None
        return self._below, self._driver

    def on_commit(self, call: Callable[[Any], None]) -> bool:
        return False  # `orm_session` does.

    def _must_begin(self, connection: Connection) -> bool:
        """Tells whether to begin a transaction in the driver: the user's engine may do it by listeners, which a
        connection of our own does not have."""
        driver: Any = connection.connection.driver_connection
        return connection.dialect.name == "sqlite" and not driver.in_transaction

    def mark(self, row: Statement | None = None, **values: object) -> None:
        self._transaction, self._begun, self._driver = self._below.get_transaction(), None, None

    def kept(self) -> bool:
        if self._mariadb:  # It rolls the whole transaction back for a deadlock, and the user may continue after it.
            return False
        now = self._below.get_transaction()
        return now is not None and now is self._transaction and now.is_active

    def _must_commit(self, connection: Connection) -> None:
        """Raises InvalidOptionError if the connection commits each statement at once."""
        name = _dialect_of(connection)
        self._is_sqlite3 = connection.dialect.driver == "pysqlite"
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._mariadb = name == "mariadb"
        if name == "sqlite":
            modes = (getattr(driver, "isolation_level", None), getattr(driver, "autocommit", None))
            at_once = not driver.in_transaction and (modes[0] is None or modes[1] is True)
        else:
            detect = getattr(connection.dialect, "detect_autocommit_setting", None)
            at_once = detect is not None and bool(detect(connection.connection.dbapi_connection))
        if at_once:
            raise refused(
                "the session's connection commits each statement at once (isolation level AUTOCOMMIT)",
                "use an engine, or execution options, without it",
            )


def _driver_sql(connection: Any, statement: Statement) -> str | None:
    """Returns the text that the connection's driver accepts unchanged; None for other drivers."""
    driver = connection.dialect.driver
    if driver in _MARIADB:
        return statement.mariadb
    if driver == "asyncpg":
        return statement.dollar
    return statement.sqlite if driver in _NAMED else statement.pyformat if driver in _PYFORMAT else None


def _bound(connection: Any, statement: Statement, values: dict[str, object]) -> Any:
    """Returns the values as the driver takes them."""
    return tuple(values[name] for name in statement.order) if connection.dialect.driver == "asyncpg" else values


def _clause_of(connection: Any, statement: Statement) -> TextClause:
    return _clause(statement.mariadb_named if _DIALECTS[connection.dialect.name] == "mariadb" else statement.named)


def _is_skipped(statement: Statement, error: IntegrityError) -> bool:
    return statement.skips and error.orig is not None and is_duplicate(error.orig)


def _dialect_of(connection: Any) -> str:
    """Returns the kind of the server. Raises InvalidOptionError for one that is not supported."""
    dialect = connection.dialect
    _must_be_known(dialect.name)
    name = _DIALECTS[dialect.name]
    if name == "mariadb":
        version = dialect.server_version_info
        if not dialect.is_mariadb:
            _must_be_known("MySQL " + ".".join(map(str, version)))
        if version < _MARIADB_MIN:
            _must_be_known("MariaDB " + ".".join(map(str, version)))
    return name


def _on_driver(connection: Connection, sql: str, statement: Statement, values: dict[str, object]) -> tuple[int, Any]:
    """Executes with a cursor of the driver. Its errors are raised as SQLAlchemy's."""
    dialect = connection.dialect
    driver: Any = connection.connection.dbapi_connection
    failures = dialect.loaded_dbapi.Error
    try:
        if dialect.driver == "pysqlite":
            return executed(driver, statement, values)
        with closing(driver.cursor()) as cursor:
            cursor.execute(sql, _bound(connection, statement, values))
            return cursor.rowcount, None
    except failures as error:
        is_lost = dialect.is_disconnect(error, driver, None)
        if is_lost:
            connection.invalidate(error)
        hidden = connection.engine.hide_parameters
        raise DBAPIError.instance(
            sql, values, error, failures, hidden, connection_invalidated=is_lost, dialect=dialect
        ) from error


def _found(result: Any) -> tuple[int, Any]:
    return (0, result.scalar()) if result.returns_rows else (result.rowcount, None)


def _must_be_known(dialect: str) -> None:
    if dialect not in _DIALECTS:
        raise InvalidOptionError(
            f"unsupported database {dialect}\nhint: SQLite, PostgreSQL and MariaDB 10.6 or newer are supported; for "
            "others, write a TransactionListener that looks up a row of your own",
            option="database",
        )


class SqlAlchemyHandle(_Base):
    """The handle of a Session or Connection."""

    asynchronous = False

    def _connection(self) -> Connection:
        if self._begun is not None:
            return self._begun  # type: ignore[no-any-return]
        return self._below.connection() if isinstance(self._below, Session) else self._below

    async def dialect(self) -> str:
        return _dialect_of(self._connection())

    async def join(self) -> None:
        self._must_be_alive()
        await self.begin()

    async def begin(self) -> None:
        connection = self._connection()
        if not connection.in_transaction():
            connection.begin()
        if self._dispose is None:
            self._must_commit(connection)
        elif self._must_begin(connection):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._begun = connection

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        connection = self._connection()
        sql = _driver_sql(connection, statement)
        try:
            # The transaction is already begun. The driver's own cursor takes half as long as SQLAlchemy for one.
            if self._driver is not None and sql is not None and (statement.changes or self._is_sqlite3):
                return _on_driver(connection, sql, statement, values)
            if sql is None:
                return _found(connection.execute(_clause_of(connection, statement), values))
            return _found(connection.exec_driver_sql(sql, _bound(connection, statement, values)))
        except IntegrityError as error:
            if _is_skipped(statement, error):
                return 0, None
            raise

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        connection = self._connection()
        return connection.execute(_clause_of(connection, statement), values).all()

    async def execute(self, sql: str) -> None:
        self._connection().exec_driver_sql(sql)

    async def commit(self) -> None:
        self._begun = self._driver = None
        self._given.commit()

    async def rollback(self) -> None:
        self._begun = self._driver = None
        self._given.rollback()

    async def close(self) -> None:
        self._given.close()
        if self._dispose is not None:
            self._dispose()


class AsyncSqlAlchemyHandle(_Base):
    """The handle of an AsyncSession or AsyncConnection."""

    asynchronous = True

    async def _connection(self) -> Any:
        if self._begun is not None:
            return self._begun
        return await self._given.connection() if isinstance(self._below, Session) else self._given

    async def dialect(self) -> str:
        return _dialect_of(await self._connection())

    async def join(self) -> None:
        self._must_be_alive()
        await self.begin()

    async def begin(self) -> None:
        connection = await self._connection()
        if not connection.in_transaction():
            await connection.begin()
        if self._dispose is None:
            self._must_commit(connection.sync_connection)
        elif self._must_begin(connection.sync_connection):
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._begun = connection

    async def run(self, statement: Statement, **values: object) -> tuple[int, Any]:
        connection = await self._connection()
        sql = _driver_sql(connection, statement)
        try:
            if self._driver is not None and sql is not None and statement.changes:
                done: tuple[int, Any] = await connection.run_sync(_on_driver, sql, statement, values)
                return done
            if sql is None:
                return _found(await connection.execute(_clause_of(connection, statement), values))
            return _found(await connection.exec_driver_sql(sql, _bound(connection, statement, values)))
        except IntegrityError as error:
            if _is_skipped(statement, error):
                return 0, None
            raise

    async def fetch(self, statement: Statement, **values: object) -> Sequence[Sequence[Any]]:
        connection = await self._connection()
        return (await connection.execute(_clause_of(connection, statement), values)).all()  # type: ignore[no-any-return]

    async def execute(self, sql: str) -> None:
        await (await self._connection()).exec_driver_sql(sql)

    async def commit(self) -> None:
        self._begun = self._driver = None
        await self._given.commit()

    async def rollback(self) -> None:
        self._begun = self._driver = None
        await self._given.rollback()

    async def close(self) -> None:
        await self._given.close()
        if self._dispose is not None:
            await self._dispose()


def handle(session: Any) -> Handle | None:
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, (Session, Connection)):
        return SqlAlchemyHandle(session, session)
    try:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    except ImportError:  # Without greenlet, SQLAlchemy has no async classes.
        return None
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        return AsyncSqlAlchemyHandle(session, session.sync_session)
    if isinstance(session, AsyncConnection):
        if session.sync_connection is None:
            raise refused("the connection is not open yet", "`async with engine.connect() as connection`")
        return AsyncSqlAlchemyHandle(session, session.sync_connection)
    return None


def is_source(source: Any) -> bool:
    """Tells whether it is an engine. Raises InvalidOptionError for one whose database a check cannot reach."""
    engine = getattr(source, "sync_engine", source)
    if not isinstance(engine, Engine):
        return False
    _must_be_known(engine.dialect.name)
    file = engine.url.database
    if engine.dialect.name == "sqlite" and (file in (None, "", ":memory:") or "mode=memory" in str(engine.url)):
        raise InvalidOptionError(
            "a SQLite database in memory exists for one connection only, so a check would not see it\n"
            "hint: a file, as in sqlite:///orders.db; in tests, one in a temporary folder",
            option="database",
        )
    return True


def engine_of(url: str) -> Any:
    """Returns an engine for a URL, an AsyncEngine if its driver is async. It keeps no connections.

    Raises InvalidOptionError for a URL that SQLAlchemy does not know.
    """
    try:
        is_async = make_url(url).get_dialect().is_async
    except (ArgumentError, ValueError):  # Their text contains the password.
        raise InvalidOptionError(
            f"SQLAlchemy knows no such URL: {url.split('://')[0]}://…\nhint: mysql+pymysql://USER:PASSWORD@HOST:PORT/NAME",
            option="database",
        ) from None
    if is_async:
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(url, poolclass=NullPool)
    return create_engine(url, poolclass=NullPool)


_FIRST = threading.Lock()
_INITIALIZED: WeakSet[Any] = WeakSet()


async def opened(source: Any, keep: bool) -> Handle:
    """Opens a new connection, from the engine's pool unless it is one to keep."""
    engine: Engine = getattr(source, "sync_engine", source)
    if engine.dialect in _INITIALIZED:
        return await _opened(source, engine, keep)
    # The first connection initializes the dialect. Engines that share it do not wait for each other's first one.
    with _FIRST:
        handle = await _opened(source, engine, keep)
        _INITIALIZED.add(engine.dialect)
    return handle


async def _opened(source: Any, engine: Engine, keep: bool) -> Handle:
    # A check's two statements must each see what was committed before, whatever the engine's level is.
    options = {} if engine.dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    if engine is source and not keep:
        connection = engine.connect().execution_options(**options)
        return SqlAlchemyHandle(connection, connection)
    own = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    if engine is source:
        connection = own.connect().execution_options(**options)
        return SqlAlchemyHandle(connection, connection, own.dispose)
    from sqlalchemy.ext.asyncio import AsyncEngine

    # The engine's own pool belongs to the user's event loop. A check runs in another thread, with another loop.
    ours = AsyncEngine(own)
    begun = await ours.connect()
    connection_async = await begun.execution_options(**options)
    below = connection_async.sync_connection
    assert below is not None
    return AsyncSqlAlchemyHandle(connection_async, below, ours.dispose)
