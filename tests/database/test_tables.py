"""Guards the tables in the user's database: migrations that create them, and programs that find tables of another
version.

A program that used tables of another version could write rows that nobody reads.
"""

import asyncio
import importlib.util
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txstore
import txstore.aio
from tests.database.conftest import SMALL, Kind
from tests.database.outbox_worker import connected as session_to
from tests.database.server import Server
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message
from txstore.database import Database, TableError

ROOT = Path(__file__).resolve().parents[2]
ROW = "(transaction_id VARCHAR(255) NOT NULL PRIMARY KEY, outcome VARCHAR(64) NOT NULL, created_ms BIGINT NOT NULL)"
GROUPS = (
    "CREATE INDEX txstore_outbox_groups ON txstore_outbox (message_group, group_seq) WHERE message_group IS NOT NULL"
)
VERSION_1 = (
    f"CREATE TABLE txstore_transactions {ROW}",
    "CREATE TABLE txstore_inbox (consumer_group VARCHAR(255) NOT NULL, message_id VARCHAR(255) NOT NULL, "
    "created_ms BIGINT NOT NULL, PRIMARY KEY (consumer_group, message_id))",
    "CREATE TABLE txstore_outbox (id {number} NOT NULL PRIMARY KEY, destination BIGINT NOT NULL, "
    "message {binary} NOT NULL, message_group VARCHAR(255), group_seq BIGINT, parked VARCHAR(1000))",
    GROUPS,
    "INSERT INTO txstore_transactions VALUES ('txstore.identity', 'a', 0)",
)
"""What `create_table` executed before tables had a version, and the row that the first program wrote."""
BOTH = pytest.mark.parametrize("kind", ["sqlite3", "psycopg"], indirect=True)


def execute(kind: Kind, *statements: str) -> None:
    if kind.address.startswith("postgresql"):
        with psycopg.connect(kind.address) as other:
            for statement in statements:
                other.execute(statement.format(number="BIGINT", binary="BYTEA"))
        return
    with closing(sqlite3.connect(kind.address)) as connection, connection:
        for statement in statements:
            connection.execute(statement.format(number="INTEGER", binary="BLOB"))


def connected(kind: Kind) -> Any:
    return closing(session_to(kind.address))


def sends(kind: Kind, broker: EmbeddedBroker, database: Database) -> bool:
    """Whether a message sent within a transaction arrives."""
    broker.create_topic("orders", 1)
    with connected(kind) as connection:
        broker.producer("g", database=database).send(Message("orders", b"1"), session=connection)
        connection.commit()
    eventually(lambda: len(broker.read("orders", 0, 0)[0]) == 1)
    return True


def enter_block(kind: Kind, broker: EmbeddedBroker, database: Database) -> None:
    with (
        connected(kind) as connection,
        broker.transaction_producer("g", database=database) as producer,
        producer.transaction(Message("orders", b"1"), session=connection),
    ):
        raise AssertionError("this line must not be reached")


def refused(kind: Kind, database: Database, broker: EmbeddedBroker) -> str:
    """The error that every use of the tables raises."""
    errors = []
    for use in (
        lambda: broker.producer("g", database=database),
        lambda: enter_block(kind, broker, database),
        database.outbox,
    ):
        with pytest.raises(TableError, match="version") as caught:
            use()
        errors.append(str(caught.value))
    assert len(set(errors)) == 1
    return errors[0]


@BOTH
def test_earlier_tables_are_refused_until_the_named_statement_updates_them(kind: Kind, broker: EmbeddedBroker) -> None:
    execute(kind, *VERSION_1)
    database = Database(kind.source)
    error = refused(kind, database, broker)
    assert "have version 1; this txstore needs version 2\nhint: call database.create_table(), or" in error
    execute(kind, error.split("updates them: ")[1])
    assert sends(kind, broker, database)
    assert database.identity() == "a", "the database keeps its name"


@BOTH
def test_creating_the_tables_updates_earlier_ones(kind: Kind, broker: EmbeddedBroker) -> None:
    execute(kind, *VERSION_1)
    database = Database(kind.source)
    database.create_table()
    assert sends(kind, broker, database)
    assert database.identity() == "a"


@BOTH
def test_newer_tables_are_refused_and_not_changed(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    execute(kind, "UPDATE txstore_transactions SET outcome = '3' WHERE transaction_id = 'txstore.version'")
    other = Database(kind.source)
    error = refused(kind, other, broker)
    assert "have version 3; this txstore knows version 2\nhint: install the txstore" in error
    with pytest.raises(TableError, match="version 3"):
        other.create_table()


@BOTH
def test_cleaning_keeps_the_version(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    """Also cleaning by programs of version 1, which do not know the row."""
    execute(
        kind, f"DELETE FROM txstore_transactions WHERE created_ms < {10**15} AND transaction_id <> 'txstore.identity'"
    )
    assert database.clean(datetime.now(UTC)) == 0
    execute(kind, "UPDATE txstore_transactions SET created_ms = 1")
    assert database.clean(datetime.now(UTC)) == 0
    assert sends(kind, broker, Database(kind.source))


@pytest.mark.parametrize("kind", ["sqlalchemy sqlite async", "sqlalchemy asyncpg"], indirect=True)
def test_async_producer_refuses_earlier_tables(kind: Kind, tmp_path: Path) -> None:
    execute(kind, *VERSION_1)

    async def send() -> None:
        async with txstore.aio.open(tmp_path / "store", **SMALL) as broker, kind.session() as session:
            producer = broker.producer("g", database=Database(kind.source))
            with pytest.raises(TableError, match="have version 1"):
                await producer.send(Message("orders", b"1"), session=session)

    asyncio.run(send())


# Migrations -----------------------------------------------------------------------------------------------------------


ENVIRONMENT = """
import sqlalchemy
from alembic import context

engine = sqlalchemy.create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.begin() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.matrix)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The path or URL of a database without tables of txstore."""
    if request.param == "sqlite":
        yield str(tmp_path / "shop.db")
        return
    server: Server = request.getfixturevalue(request.param)
    url = server.url(server.new())
    yield url
    server.give_back(url)


@pytest.mark.skipif(importlib.util.find_spec("alembic") is None, reason="requirements-dev.lock is not installed")
def test_migration_on_the_page_creates_the_tables(shop: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/publish/database.md").read_text()
    (migration,) = re.findall(r"```python\n(from alembic.*?)```", page, flags=re.DOTALL)
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / "migrations" / "env.py").write_text(ENVIRONMENT)
    for name, before in (("1", None), ("2", "1")):  # The second one is that of an update.
        (versions / f"{name}.py").write_text(f"revision, down_revision = {name!r}, {before!r}\n{migration}")
    url = shop.replace("postgresql://", "postgresql+psycopg://") if "://" in shop else f"sqlite:///{shop}"
    settings = (
        f"[alembic]\nscript_location = migrations\npath_separator = os\nsqlalchemy.url = {url.replace('%', '%%')}\n"
    )
    (tmp_path / "alembic.ini").write_text(settings)
    command = [sys.executable, "-W", "error", "-m", "alembic", "upgrade", "head"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        assert sends(Kind("any", shop), broker, Database(shop))
