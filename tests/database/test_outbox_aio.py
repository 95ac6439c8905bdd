"""Guards messages within the user's own transaction on asyncio: `txstore.aio.open`, each async driver.

On SQLite, and on a real PostgreSQL where that is installed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

import txstore
import txstore.aio
from tests.database.conftest import SMALL, Kind, commit, new_kind, rollback
from txstore import Message, errors
from txstore.aio import EmbeddedBroker
from txstore.database import Database, TableError
from txstore.database.outbox import AsyncOutboxProducer

KINDS = [
    "sqlalchemy sqlite async",
    "aiosqlite",
    "psycopg async",
    "sqlalchemy asyncpg",
    "asyncpg",
    pytest.param("sqlalchemy mariadb asyncmy", marks=pytest.mark.matrix),
]
Work = Callable[[EmbeddedBroker, AsyncOutboxProducer], Awaitable[None]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        yield found


@asynccontextmanager
async def begun(kind: Kind) -> AsyncIterator[Any]:
    """A session in which a transaction has begun, as its driver's users do it."""
    async with kind.session() as session:
        if isinstance(session, asyncpg.Connection):
            await session.execute("BEGIN")
        yield session


def on_loop(database: Database, store: Path, work: Work) -> None:
    """Runs `work` with an open broker and a producer."""

    async def run() -> None:
        async with txstore.aio.open(store, **SMALL) as broker:
            await asyncio.to_thread(broker.blocking.create_topic, "orders", 1)
            producer = broker.producer("order-service", database=database)
            await work(broker, producer)
        if isinstance(database.source, AsyncEngine):
            await database.source.dispose()

    asyncio.run(run())


def stored(store: Path) -> list[bytes]:
    with txstore.open(store, **SMALL) as broker:
        return [message.body for message in broker.read("orders", 0, 0, 1000)[0]]


def test_message_is_sent_with_the_commit_only(kind: Kind, database: Database, tmp_path: Path) -> None:
    async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
        async with begun(kind) as session:
            await kind.order(session, 1, "a")
            receipt = await producer.send(Message("orders", b"1", keys=["o-1"]), session=session)
            assert (len(receipt.message_id), receipt.topic) == (32, "orders")
            await producer.send_batch([Message("orders", b"2"), Message("orders", b"3")], session=session)
            await commit(session)
        async with begun(kind) as session:
            await kind.order(session, 2, "b")
            await producer.send(Message("orders", b"rolled back"), session=session)
            await rollback(session)
        sent = await producer.send(Message("orders", b"at once"), session=None)
        assert sent.queue_id == 0
        async with broker.consumer("shipping", "orders") as consumer:
            messages = aiter(consumer)
            found = [await anext(messages) for _ in range(4)]
        assert sorted(message.body for message in found) == [b"1", b"2", b"3", b"at once"]
        assert [message.message_id for message in found if message.body == b"1"] == [receipt.message_id]

    on_loop(database, tmp_path / "store", work)
    assert kind.orders() == [1]
    assert kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)]


def test_database_that_may_lose_commits_is_named(
    kind: Kind, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    off = "SET synchronous_commit = off" if kind.address.startswith("postgresql") else ""

    async def work(_: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
        for number in range(2):
            async with begun(kind) as session:
                if off:
                    await session.execute(text(off) if isinstance(session, AsyncSession) else off)
                await kind.order(session, number, "a")
                await producer.send(Message("orders", b"1"), session=session)
                await commit(session)

    with caplog.at_level(logging.WARNING, "txstore.database.outbox"):
        on_loop(database, tmp_path / "store", work)
    assert caplog.text.count("may lose commits with the power (synchronous_commit = off)") == bool(off)


def test_many_tasks_send_each_message_once_and_in_order_of_its_group(
    kind: Kind, database: Database, tmp_path: Path
) -> None:
    async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
        # SQLite has one writer. A session of SQLAlchemy's ends with its engine here.
        turn = asyncio.Semaphore(1 if "sql" in kind.name else 4)

        async def one(task: int) -> None:
            for number in range(10):
                async with turn, begun(kind) as session:
                    message = Message("orders", b"%d-%d" % (task, number), message_group=f"g-{task}")
                    await producer.send(message, session=session)
                    await (rollback(session) if number % 4 == 3 else commit(session))

        await asyncio.gather(*(one(task) for task in range(4)))

    on_loop(database, tmp_path / "store", work)
    bodies = stored(tmp_path / "store")
    expected = [[b"%d-%d" % (task, number) for number in range(10) if number % 4 != 3] for task in range(4)]
    assert [[body for body in bodies if body.startswith(b"%d-" % task)] for task in range(4)] == expected
    assert len(bodies) == sum(map(len, expected))


def test_cancelled_task_sends_nothing(kind: Kind, database: Database, tmp_path: Path) -> None:
    async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
        inserted = asyncio.Event()

        async def pay() -> None:
            async with begun(kind) as session:
                await producer.send(Message("orders", b"cancelled"), session=session)
                inserted.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(pay())
        await inserted.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with begun(kind) as session:
            await producer.send(Message("orders", b"after"), session=session)
            await commit(session)

    on_loop(database, tmp_path / "store", work)
    assert stored(tmp_path / "store") == [b"after"]


def test_wrong_use_is_refused_before_anything_is_written(kind: Kind, database: Database, tmp_path: Path) -> None:
    async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
        blocking = sqlite3.connect(tmp_path / "other.db")
        with pytest.raises(errors.InvalidOptionError, match=r"session blocks.*\n.*async session"):
            await producer.send(Message("orders", b"x"), session=blocking)  # type: ignore[call-overload]
        blocking.close()
        async with begun(kind) as session:
            with pytest.raises(errors.InvalidMessageError, match="max_message_size allows"):
                await producer.send(Message("orders", b"x" * (1 << 17)), session=session)
            with pytest.raises(errors.InvalidNameError, match="has no queue 7"):
                await producer.send(Message("orders", b"x"), session=session, queue_id=7)
            with pytest.raises(errors.InvalidNameError, match="system"):
                await producer.send(Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), session=session)
            await commit(session)
        if kind.name == "asyncpg":
            async with kind.session() as session:
                with pytest.raises(errors.InvalidOptionError, match="commits each statement at once"):
                    await producer.send(Message("orders", b"x"), session=session)
        await producer.close()
        async with begun(kind) as session:
            with pytest.raises(errors.StoreClosedError):
                await producer.send(Message("orders", b"x"), session=session)

    on_loop(database, tmp_path / "store", work)
    assert kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)]


def test_missing_table_is_named(kind: Kind, tmp_path: Path) -> None:
    database = Database(kind.source)

    async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
        async with begun(kind) as session:
            with pytest.raises(TableError, match="create_table"):
                await producer.send(Message("orders", b"x"), session=session)

    on_loop(database, tmp_path / "store", work)


def test_savepoint_that_rolls_back_takes_its_messages_along(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with new_kind("sqlalchemy asyncpg", tmp_path, request) as kind:
        database = Database(kind.source)
        database.create_table()

        async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
            async with AsyncSession(kind.engine) as session, session.begin():
                await producer.send(Message("orders", b"kept"), session=session)
                nested = await session.begin_nested()
                await producer.send(Message("orders", b"rolled back"), session=session)
                await nested.rollback()
                async with session.begin_nested():
                    await producer.send(Message("orders", b"released"), session=session)

        on_loop(database, tmp_path / "store", work)
        assert stored(tmp_path / "store") == [b"kept", b"released"]


def test_lost_connection_is_told_as_sqlalchemy_does(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The row is inserted by the driver's own cursor. The session can be used again after a rollback."""
    with new_kind("sqlalchemy asyncpg", tmp_path, request) as kind:
        database = Database(kind.source)
        database.create_table()

        async def work(broker: EmbeddedBroker, producer: AsyncOutboxProducer) -> None:
            async with AsyncSession(kind.engine) as session:
                pid = await session.scalar(text("SELECT pg_backend_pid()"))
                async with kind.engine.connect() as other:
                    await other.execute(text(f"SELECT pg_terminate_backend({pid}, 10000)"))
                with pytest.raises(DBAPIError) as raised:
                    await producer.send(Message("orders", b"lost"), session=session)
                assert raised.value.connection_invalidated
                await session.rollback()
                await producer.send(Message("orders", b"1"), session=session)
                await session.commit()

        on_loop(database, tmp_path / "store", work)
        assert stored(tmp_path / "store") == [b"1"]
