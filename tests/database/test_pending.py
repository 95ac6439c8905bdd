"""Guards `Database.pending`: a test sees the messages of its own open transaction, and no others, before it rolls back.

With every kind of session, on both databases.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import text

import txstore
import txstore.aio
from tests.database.conftest import SMALL, Kind, commit, new_kind, rollback
from txstore import EmbeddedBroker, InvalidOptionError, Message
from txstore._native import OutboxRow
from txstore.database import Database, OutboxReceipt, PendingMessage, TableError

KINDS = [
    "sqlite3",
    "sqlalchemy sqlite",
    "sqlalchemy sqlite connection",
    "aiosqlite",
    "sqlalchemy sqlite async",
    "psycopg",
    "psycopg async",
    "asyncpg",
    "sqlalchemy postgres",
    "sqlalchemy asyncpg",
    pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix),
    pytest.param("sqlalchemy mariadb asyncmy", marks=pytest.mark.matrix),
]
ASYNC = ("async", "aiosqlite")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        yield found


class Sending:
    """A session with an open transaction, and a producer for it. Blocking calls look like async ones."""

    def __init__(self, kind: Kind, database: Database, producer: Any, session: Any) -> None:
        self.kind, self.database, self.producer, self.session = kind, database, producer, session

    async def send(self, message: Message) -> OutboxReceipt:
        receipt: OutboxReceipt = await settled(self.producer.send(message, session=self.session))
        return receipt

    async def pending(self) -> list[PendingMessage]:
        messages: list[PendingMessage] = await settled(self.database.pending(self.session))
        return messages

    async def execute(self, sql: str) -> None:
        await settled(self.session.execute(text(sql) if "sqlalchemy" in self.kind.name else sql))


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def sending(kind: Kind, database: Database, store: Path) -> AsyncIterator[Sending]:
    async with kind.session() as session:
        if any(part in kind.name for part in ASYNC):
            async with txstore.aio.open(store, **SMALL) as broker:
                yield Sending(kind, database, broker.producer("g", database=database), session)
        else:
            with txstore.open(store, **SMALL) as blocking:
                yield Sending(kind, database, blocking.producer("g", database=database), session)
        await rollback(session)


def with_session(kind: Kind, database: Database, store: Path, work: Callable[[Sending], Any]) -> None:
    async def run() -> None:
        async with sending(kind, database, store) as open_session:
            if isinstance(open_session.session, asyncpg.Connection):
                await open_session.session.execute("BEGIN")
            await work(open_session)

    asyncio.run(run())


DUE = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def bodies(messages: list[PendingMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_messages_are_listed_in_order_and_nothing_is_published(kind: Kind, database: Database, tmp_path: Path) -> None:
    async def work(own: Sending) -> None:
        assert await own.pending() == []
        first = await own.send(Message.of("orders", {"id": 1}, tags="paid", keys=["o-1", "o-2"], flag=7))
        bill = Message("bills", b"2", properties={"by": "me"}, message_group="c-1", delay_level=3)
        second = await own.send(bill)
        await own.execute("SAVEPOINT one")
        await own.send(Message("orders", b"rolled back"))
        assert bodies(await own.pending()) == [b'{"id":1}', b"2", b"rolled back"]
        await own.execute("ROLLBACK TO SAVEPOINT one")
        await own.execute("SAVEPOINT two")
        third = await own.send(Message("orders", b"3", deliver_at=DUE))
        await own.execute("RELEASE SAVEPOINT two")
        for _ in range(2):
            one, two, three = await own.pending()
            assert (one.message_id, two.message_id, three.message_id) == (
                first.message_id,
                second.message_id,
                third.message_id,
            )
        assert (one.topic, one.value(dict), one.tags, one.keys, one.flag) == (
            "orders",
            {"id": 1},
            "paid",
            ("o-1", "o-2"),
            7,
        )
        assert (two.topic, two.properties, two.message_group, two.delay_level) == ("bills", {"by": "me"}, "c-1", 3)
        assert (three.body, three.tags, three.keys, three.properties) == (b"3", None, (), {})
        assert (one.deliver_at, two.deliver_at, three.deliver_at) == (None, None, DUE)
        assert one.producer_group == "g"
        assert one.born_timestamp <= three.born_timestamp
        await rollback(own.session)
        if isinstance(own.session, asyncpg.Connection):
            await own.session.execute("BEGIN")
        assert await own.pending() == []

    with_session(kind, database, tmp_path / "store", work)
    assert kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)]
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        assert sum(end for topic in broker.topics() for _, _, _, end in broker.queues(topic)) == 0


def test_messages_of_other_transactions_are_not_listed(kind: Kind, database: Database, tmp_path: Path) -> None:
    has_writers = "://" in kind.address  # SQLite has one.
    copies = (
        "INSERT INTO txstore_outbox SELECT id + {0}, destination + 1, message, NULL, NULL, NULL FROM txstore_outbox"
    )

    async def work(own: Sending) -> None:
        await own.send(Message("orders", b"committed"))
        await own.execute(copies.format(1000))
        await commit(own.session)  # The copy is for another store, so it waits.
        if isinstance(own.session, asyncpg.Connection):
            await own.session.execute("BEGIN")
        assert await own.pending() == []
        await own.send(Message("orders", b"own"))
        assert bodies(await own.pending()) == [b"own"]
        if has_writers:
            with closing(kind.connect()) as other:
                if kind.address.startswith("mysql"):  # Else INSERT … SELECT waits for the row of the open transaction.
                    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                other.execute(
                    "INSERT INTO txstore_outbox (id, destination, message) "
                    "SELECT id + 5000, destination, message FROM txstore_outbox"
                )
                assert bodies(await own.pending()) == [b"own"]
                other.commit()
                assert bodies(await own.pending()) == [b"own"]
                for (number,) in other.execute("SELECT id FROM txstore_outbox").fetchall():
                    other.execute(f"DELETE FROM txstore_outbox WHERE id = {number}")
                other.commit()
        assert bodies(await own.pending()) == [b"own"]
        await commit(own.session)
        if isinstance(own.session, asyncpg.Connection):
            await own.session.execute("BEGIN")
        assert await own.pending() == []

    with_session(kind, database, tmp_path / "store", work)


@pytest.mark.parametrize("kind", ["sqlite3"], indirect=True)
def test_what_others_commit_meanwhile_is_not_listed(database: Database, kind: Kind, broker: EmbeddedBroker) -> None:
    own, other = sqlite3.connect(kind.address), sqlite3.connect(kind.address, isolation_level=None)
    numbers = iter(range(100))

    def commit_one(sql: str) -> None:
        if "SELECT id, message" in sql:
            other.execute("INSERT INTO txstore_outbox VALUES (?, 1, ?, NULL, NULL, NULL)", (next(numbers), row))

    row = OutboxRow.of(Message("orders", b"1"), "g").data
    own.set_trace_callback(commit_one)
    assert database.pending(own) == []
    assert next(numbers) > 1, "it looked again"
    own.set_trace_callback(None)
    broker.producer("g", database=database).send(Message("orders", b"own"), session=own)
    assert bodies(database.pending(own)) == [b"own"]
    own.close()
    other.close()


def test_session_is_refused_as_by_send(kind: Kind, database: Database, tmp_path: Path) -> None:
    other = Database(tmp_path / "other.db")
    other.create_table()

    async def work(own: Sending) -> None:
        sessions: list[Any] = [own.session, object(), type(own.session)]
        for session in sessions:
            with pytest.raises(InvalidOptionError, match="session") as listed:
                await settled(other.pending(session))
            if session is own.session:
                assert isinstance(listed.value, TableError)
                assert "works on another database than the one that checks read" in str(listed.value)
                await rollback(own.session)
            else:
                with pytest.raises(InvalidOptionError) as sent:
                    await settled(own.producer.send(Message("orders", b"1"), session=session))
                assert str(listed.value) == str(sent.value)

    with_session(kind, database, tmp_path / "store", work)


@pytest.mark.parametrize("kind", ["sqlite3", "psycopg"], indirect=True)
def test_connection_without_a_transaction_is_refused(database: Database, kind: Kind, broker: EmbeddedBroker) -> None:
    at_once: Any
    if kind.name == "sqlite3":
        at_once = sqlite3.connect(kind.address, isolation_level=None)
    else:
        at_once = psycopg.connect(kind.address, autocommit=True)
    producer = broker.producer("g", database=database)
    with pytest.raises(InvalidOptionError, match="commits each statement at once") as sent:
        producer.send(Message("orders", b"1"), session=at_once)
    with pytest.raises(InvalidOptionError) as listed:
        database.pending(at_once)
    at_once.close()
    assert str(listed.value) == str(sent.value)
