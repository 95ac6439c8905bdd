"""What the tests of the database room share: every kind of session, on SQLite and on a real PostgreSQL.

The server is Debian's package, started here on a socket in a temporary folder, by a user without rights. Where it is
not installed its tests are skipped, and say so.
"""

import asyncio
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import txstore
from txstore import Broker
from txstore.database import Database

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "max_message_size": 1 << 16,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}
ORDERS = "CREATE TABLE orders (number BIGINT PRIMARY KEY, transaction_id VARCHAR(255))"


# PostgreSQL -----------------------------------------------------------------------------------------------------------


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@dataclass
class Postgres:
    """A running server; each test gets a database of its own, new or left clean by another."""

    folder: Path
    made: int = 0
    free: list[str] = field(default_factory=list)

    def url(self, database: str) -> str:
        return f"postgresql://txstore@/{database}?host={self.folder}"

    def new(self) -> str:
        """The name of a database with the user's table alone."""
        if self.free:
            return self.free.pop()
        self.made += 1
        name = f"test_{os.getpid()}_{self.made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(self.url(name)) as connection:
            connection.execute(ORDERS)
        return name

    def give_back(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM orders")
            connection.execute("DROP TABLE IF EXISTS txstore_transactions, txstore_inbox")
        self.free.append(url.split("/")[3].split("?")[0])


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server, initdb = _program("postgres"), _program("initdb")
    if server is None or initdb is None:
        pytest.skip("PostgreSQL is not installed here: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="txstore-postgres-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # The server refuses to run with root's rights.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = folder / "data"
    try:
        init: list[Any] = [initdb, "-D", data, "-U", "txstore", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, timeout=120, **user)
        command: list[Any] = [
            server,
            "-D",
            data,
            "-k",
            folder,
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "max_connections=60",
        ]
        with (folder / "log").open("wb") as log:
            running: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **user)
        try:
            found = Postgres(folder)
            _wait_for(found, running)
            yield found
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: Postgres, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(server.url("postgres")).close()
            return
        except psycopg.OperationalError:
            assert running.poll() is None, (server.folder / "log").read_text()
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.02)


# Kinds of sessions ----------------------------------------------------------------------------------------------------


class Kind:
    """One way to reach a database: what checks open, and what a user works with."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place
        self.engine: Any = None
        self.source: Any = place
        if name.startswith("sqlalchemy"):
            asynchronous, driver = "async" in name or "asyncpg" in name, "psycopg"
            if "asyncpg" in name:
                driver = "asyncpg"
            if "sqlite" in name:
                url = f"sqlite{'+aiosqlite' if asynchronous else ''}:///{place}"
            else:
                url = place.replace("postgresql://", f"postgresql+{driver}://")
            self.engine = self.source = create_async_engine(url) if asynchronous else create_engine(url)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """A user's session, made the usual way; what it did not commit is lost."""
        if self.name == "sqlite3":
            connection = sqlite3.connect(self.place)
            try:
                yield connection
            finally:
                connection.close()
        elif self.name == "psycopg":
            plain = psycopg.connect(self.place)
            try:
                yield plain
            finally:
                plain.close()
        elif self.name == "psycopg autocommit":
            with psycopg.connect(self.place, autocommit=True) as committing:
                yield committing
        elif self.name == "psycopg async":
            waiting = await psycopg.AsyncConnection.connect(self.place)
            try:
                yield waiting
            finally:
                await waiting.close()
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
        """The business row."""
        if self.name == "sqlite3":
            session.execute("INSERT INTO orders VALUES (?, ?)", (number, transaction_id))
        elif self.name.startswith("psycopg"):
            done = session.execute("INSERT INTO orders VALUES (%s, %s)", (number, transaction_id))
            if asyncio.iscoroutine(done):
                await done
        else:
            values = {"number": number, "id": transaction_id}
            done = session.execute(text("INSERT INTO orders VALUES (:number, :id)"), values)
            if asyncio.iscoroutine(done):
                await done

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What another connection sees."""
        if self.place.startswith("postgresql"):
            with psycopg.connect(self.place) as connection:
                return connection.execute(sql).fetchall()
        other = sqlite3.connect(self.place)
        try:
            return other.execute(sql).fetchall()
        finally:
            other.close()

    def orders(self) -> list[int]:
        return [row[0] for row in self.rows("SELECT number FROM orders ORDER BY number")]

    def outcomes(self) -> dict[str, str]:
        """Id → outcome, of the rows of local transactions."""
        rows = self.rows("SELECT transaction_id, outcome FROM txstore_transactions")
        return {name: outcome for name, outcome in rows if name != "txstore.identity"}

    def close(self) -> None:
        if self.engine is None:
            return
        if hasattr(self.engine, "sync_engine"):
            asyncio.run(self.engine.dispose())
        else:
            self.engine.dispose()


KINDS = [
    "sqlite3",
    "sqlalchemy sqlite",
    "sqlalchemy sqlite connection",
    "sqlalchemy sqlite async",
    "psycopg",
    "psycopg autocommit",
    "psycopg async",
    "sqlalchemy postgres",
    "sqlalchemy postgres connection",
    "sqlalchemy postgres async",
    "sqlalchemy asyncpg",
]


def make_kind(name: str, folder: Path, request: pytest.FixtureRequest) -> Kind:
    if "sqlite" in name:
        place = str(folder / f"{name.replace(' ', '-')}.db")
        connection = sqlite3.connect(place)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(ORDERS)
        connection.close()
        return Kind(name, place)
    server: Postgres = request.getfixturevalue("postgres")
    return Kind(name, server.url(server.new()))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    """Every kind, each with a database that has the user's table, and not ours yet."""
    found = make_kind(request.param, tmp_path, request)
    yield found
    found.close()
    if found.place.startswith("postgresql"):
        request.getfixturevalue("postgres").give_back(found.place)


@pytest.fixture
def database(kind: Kind) -> Database:
    made = Database(kind.source)
    made.create_table()
    return made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A store whose checks come only when a test makes them come."""
    with txstore.open(tmp_path / "store", transaction_check_interval=3600, **SMALL) as opened:
        yield opened


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    """A sync or async block as an async one."""
    if hasattr(block, "__aenter__") and getattr(block, "_handle").asynchronous:  # noqa: B009
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def messages(broker: Broker, topic: str) -> list[str | None]:
    """The transaction ids of all visible messages of a topic."""
    found: list[str | None] = []
    for _, queue_id, first, end in broker.queues(topic):
        offset = first
        while offset < end:
            read, offset = broker.read(topic, queue_id, offset, 256)
            found.extend(message.transaction_id for message in read)
    return found


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits for what another thread or process will do."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)
