"""Fixtures of the database tests: every kind of session, on SQLite and on a real PostgreSQL and MariaDB, and of Django.

Where a server is not installed its tests are skipped, and say so.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import txstore
from tests.database import django_kind
from tests.database.mariadb_server import MariaDB, running_mariadb
from tests.database.mariadb_server import connected as to_mariadb
from tests.database.server import ORDERS, Postgres, postgres_or_skip
from txstore import EmbeddedBroker
from txstore.database import Database, OutboxProducer

SQLITE_SECONDS = 60.0
"""How long a session waits for SQLite's lock. By itself it is 5 s, in which a thread may always be passed over."""
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "max_message_size": 1 << 16,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_or_skip() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    with running_mariadb() as server:
        if server is None:
            pytest.skip("MariaDB is not installed here: apt-get install mariadb-server")
        yield server


# Kinds of sessions ----------------------------------------------------------------------------------------------------


class Kind:
    """One way to reach a database: the source that checks open, and the sessions of the user."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.engine: Any = None
        self.source: Any = address
        if name.startswith("sqlalchemy"):
            asynchronous, driver = "async" in name or "asyncpg" in name, "psycopg"
            if "asyncpg" in name:
                driver = "asyncpg"
            if "sqlite" in name:
                url = f"sqlite{'+aiosqlite' if asynchronous else ''}:///{address}"
            elif address.startswith("mysql"):
                drivers = ("asyncmy", "aiomysql", "mysqldb")
                url = address.replace("pymysql", next((one for one in drivers if one in name), "pymysql"))
                asynchronous = "asyncmy" in name or "aiomysql" in name
            else:
                url = address.replace("postgresql://", f"postgresql+{driver}://")
            waits: dict[str, Any] = {"timeout": SQLITE_SECONDS} if "sqlite" in url else {}
            create: Any = create_async_engine if asynchronous else create_engine
            self.engine = self.source = create(url, connect_args=waits)
        if self.is_django:
            from txstore.database.django import Alias

            self.alias = django_kind.alias_of(address)
            self.source = Alias(self.alias)

    @property
    def is_django(self) -> bool:
        return self.name.startswith("django")

    @property
    def given(self) -> str:
        """What `outbox_worker` takes: the address, and whether Django's connections are used."""
        return f"django:{self.address}" if self.is_django else self.address

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """A user's session, made the usual way; what it did not commit is lost."""
        if self.name == "sqlite3":
            connection = sqlite3.connect(self.address, timeout=SQLITE_SECONDS)
            try:
                yield connection
            finally:
                connection.close()
        elif self.name == "aiosqlite":
            async with aiosqlite.connect(self.address, timeout=SQLITE_SECONDS) as own_thread:
                yield own_thread
        elif self.name == "asyncpg":
            other = await asyncpg.connect(self.address)
            try:
                yield other
            finally:
                await other.close()
        elif self.name == "psycopg":
            plain = psycopg.connect(self.address)
            try:
                yield plain
            finally:
                plain.close()
        elif self.name == "psycopg autocommit":
            with psycopg.connect(self.address, autocommit=True) as committing:
                yield committing
        elif self.name == "psycopg async":
            waiting = await psycopg.AsyncConnection.connect(self.address)
            try:
                yield waiting
            finally:
                await waiting.close()
        elif self.is_django:
            with django_kind.connection_of(self.alias) as connection:
                yield connection
        elif "connection" in self.name:
            with self.engine.connect() as below:
                yield below
        elif self.name.startswith("sqlalchemy") and hasattr(self.engine, "sync_engine"):
            try:
                async with AsyncSession(self.engine) as asynchronous:
                    yield asynchronous
            finally:  # Its connections belong to this event loop.
                await self.engine.dispose()
        else:
            with Session(self.engine) as session:
                yield session

    async def order(self, session: Any, number: int, transaction_id: str) -> None:
        """Inserts the business row."""
        if self.name == "sqlite3":
            session.execute("INSERT INTO orders VALUES (?, ?)", (number, transaction_id))
        elif self.name == "aiosqlite":
            await session.execute("INSERT INTO orders VALUES (?, ?)", (number, transaction_id))
        elif self.name == "asyncpg":
            await session.execute("INSERT INTO orders VALUES ($1, $2)", number, transaction_id)
        elif self.name.startswith("psycopg"):
            done = session.execute("INSERT INTO orders VALUES (%s, %s)", (number, transaction_id))
            if asyncio.iscoroutine(done):
                await done
        elif self.is_django:
            django_kind.execute(session, "INSERT INTO orders VALUES (%s, %s)", (number, transaction_id))
        else:
            values = {"number": number, "id": transaction_id}
            done = session.execute(text("INSERT INTO orders VALUES (:number, :id)"), values)
            if asyncio.iscoroutine(done):
                await done

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The numbers that another connection sees."""
        with closing(self.connect()) as other:
            return list(other.execute(sql).fetchall())

    def connect(self) -> Any:
        """A connection of the database's blocking driver."""
        if self.address.startswith("postgresql"):
            return psycopg.connect(self.address)
        if self.address.startswith("mysql"):
            return to_mariadb(self.address)
        return sqlite3.connect(self.address, timeout=SQLITE_SECONDS)

    def orders(self) -> list[int]:
        return [row[0] for row in self.rows("SELECT number FROM orders ORDER BY number")]

    def outcomes(self) -> dict[str, str]:
        """Id → outcome, of the rows of local transactions."""
        rows = self.rows("SELECT transaction_id, outcome FROM txstore_transactions")
        return {name: outcome for name, outcome in rows if not name.startswith("txstore.")}

    def close(self) -> None:
        if self.engine is None:
            return
        if hasattr(self.engine, "sync_engine"):
            asyncio.run(self.engine.dispose())
        else:
            self.engine.dispose()


MARIADB_KINDS = ("sqlalchemy mariadb", "sqlalchemy mariadb connection", "sqlalchemy mariadb asyncmy")
DJANGO_KINDS = (
    "django sqlite",
    pytest.param("django postgres", marks=pytest.mark.matrix),
    pytest.param("django mariadb", marks=pytest.mark.matrix),
)
KINDS = [
    "sqlite3",
    "sqlalchemy sqlite",
    pytest.param("sqlalchemy sqlite connection", marks=pytest.mark.matrix),
    "sqlalchemy sqlite async",
    "aiosqlite",
    "psycopg",
    pytest.param("psycopg autocommit", marks=pytest.mark.matrix),
    "psycopg async",
    "sqlalchemy postgres",
    pytest.param("sqlalchemy postgres connection", marks=pytest.mark.matrix),
    pytest.param("sqlalchemy postgres async", marks=pytest.mark.matrix),
    "sqlalchemy asyncpg",
    "asyncpg",
    *(pytest.param(name, marks=pytest.mark.matrix) for name in MARIADB_KINDS),
    *DJANGO_KINDS,
]


@contextmanager
def new_kind(name: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Kind]:
    """Makes a database that has the user's table, and not txstore's yet. At the end of the block, another test gets it.

    No other test gets the database of a block that raised: its sessions may still be open.
    """
    if name.startswith("django"):
        pytest.importorskip("django", reason="requirements-dev.lock is not installed")
    if "sqlite" in name:
        made = Kind(name, _new_sqlite(folder / f"{name.replace(' ', '-')}.db"))
        yield made
        made.close()
        return
    server: Postgres | MariaDB = request.getfixturevalue("mariadb" if "mariadb" in name else "postgres")
    made = Kind(name, server.url(server.new()))
    yield made
    made.close()
    server.give_back(made.address)


def _new_sqlite(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(ORDERS)
    return str(path)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    """Every kind of session, each on a database of its own."""
    with new_kind(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def database(kind: Kind) -> Database:
    made = Database(kind.source)
    made.create_table()
    return made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A store whose checks run only when a test triggers them."""
    with txstore.open(tmp_path / "store", transaction_check_interval=3600, **SMALL) as opened:
        yield opened


@pytest.fixture
def producer(broker: EmbeddedBroker, database: Database) -> OutboxProducer:
    """A producer of messages within transactions; their topic has one queue."""
    broker.create_topic("orders", 1)
    return broker.producer("order-service", database=database)


def bodies(broker: EmbeddedBroker, topic: str = "orders") -> list[bytes]:
    """What the topic's first queue has."""
    return [message.body for message in broker.read(topic, 0, 0, 5000)[0]]


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    """Enters a sync or async block as an async one."""
    if hasattr(block, "__aenter__") and getattr(block, "_handle").asynchronous:  # noqa: B009
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


async def commit(session: Any) -> None:
    """Commits what a session has begun, as its user would."""
    await _end(session, "commit")


async def rollback(session: Any) -> None:
    await _end(session, "rollback")


async def _end(session: Any, how: str) -> None:
    if hasattr(session, "atomic_blocks"):  # Inside `atomic()`, only a statement can do it.
        django_kind.execute(session, how.upper())
        return
    done = session.execute(how) if isinstance(session, asyncpg.Connection) else getattr(session, how)()
    if done is not None:
        await done


def messages(broker: EmbeddedBroker, topic: str) -> list[str | None]:
    """The transaction ids of all visible messages of a topic."""
    found: list[str | None] = []
    for _, queue_id, first, end in broker.queues(topic):
        offset = first
        while offset < end:
            read, offset = broker.read(topic, queue_id, offset, 256)
            found.extend(message.transaction_id for message in read)
    return found
