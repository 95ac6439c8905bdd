"""Guards a row and its message as one transaction on asyncio, with a remote broker and with a store in the process.

The session's event loop is also the one on which the broker's responses arrive, and neither waits for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import txstore.aio
from tests.remoting_client.conftest import SOON
from txstore import InvalidOptionError, Message
from txstore.database import Database


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(limited())


async def take(consumer: txstore.aio.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [message.body for message in await consumer.poll(32, 1)]
    return found


@pytest.mark.parametrize("kind", ["remote", "embedded"])
def test_row_and_message_are_one_transaction(serve_names: str, topic: str, tmp_path: Path, kind: str) -> None:
    def opened() -> txstore.aio.Broker:
        if kind == "remote":
            return txstore.aio.connect(serve_names, **SOON)
        return txstore.aio.open(tmp_path / "store", transaction_timeout=0.1, transaction_check_interval=0.1)

    async def story() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}")
        database = Database(engine)
        await asyncio.to_thread(database.create_table)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id TEXT)"))

        async def order(name: str) -> None:
            await session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})

        async with (
            opened() as broker,
            broker.transaction_producer(f"g-{topic}", database=database) as producer,
            broker.consumer(f"c-{topic}", topic) as consumer,
            AsyncSession(engine) as session,
        ):
            async with producer.transaction(Message(topic, b"committed"), session=session):
                await order("committed")

            several = [Message(topic, b"several 1"), Message(topic, b"several 2")]
            async with producer.transaction(several, session=session):
                await order("several")

            async def raises() -> None:
                async with producer.transaction(Message(topic, b"raised"), session=session):
                    await order("raised")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await raises()
            async with producer.transaction(Message(topic, b"rolled back"), session=session) as tx:
                await order("rolled back")
                tx.rollback()

            async def is_cancelled() -> None:
                async with producer.transaction(Message(topic, b"by its check"), session=session):
                    await order("by its check")
                    await session.commit()
                    begun.set()
                    await asyncio.sleep(60)

            begun = asyncio.Event()
            work = asyncio.create_task(is_cancelled())
            await begun.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert sorted(await take(consumer, 4)) == [b"by its check", b"committed", b"several 1", b"several 2"]
            assert await consumer.poll(9, 1) == []
            rows = (await session.execute(text("SELECT id FROM orders ORDER BY id"))).scalars().all()
            assert rows == ["by its check", "committed", "several"]
            await producer.clean_database(datetime.now(UTC))
        await engine.dispose()

    run(story())


def test_session_that_would_block_the_loop_is_refused(serve_names: str, topic: str, tmp_path: Path) -> None:
    async def story() -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
        database = Database(engine)
        database.create_table()
        async with (
            txstore.aio.connect(serve_names, **SOON) as broker,
            broker.transaction_producer(f"g-{topic}", database=database) as producer,
        ):
            with Session(engine) as session, pytest.raises(InvalidOptionError, match="Session is not async"):
                producer.transaction(Message(topic, b"x"), session=session)  # type: ignore[call-overload]
            with pytest.raises(InvalidOptionError, match="its transactions need a session"):
                producer.transaction(Message(topic, b"x"))
        engine.dispose()

    run(story())
