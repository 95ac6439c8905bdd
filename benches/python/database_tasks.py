"""Messages in the transactions of 64 tasks on PostgreSQL, next to the library faststream-outbox.

In:     `python -m benches.python.database_tasks [--tasks 64] [--count 100] [--turns 5]`; the packages of
        `requirements-bench.lock`.
Out:    a table of transactions per second and their ratios, measured in the same turns.
Always: all sides have one process and one event loop, SQLAlchemy's async sessions on asyncpg, the same business row and
        a durable database. The clock stops, on both sides, when a consumer has read the last message, and the last row
        is deleted; ours, when the message is durable, too. faststream-outbox has no log: its table is the queue, and
        a row is deleted after its handler.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import txstore.aio
from benches.python.loads import BODY, GROUP, TOPIC, forward_all
from benches.python.measure import in_turns, scratch
from benches.python.ratios import against
from tests.database.server import Postgres, running_postgres
from txstore import Message
from txstore.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_DIGITS = 8
_ORDERS = "CREATE TABLE shop_orders (id BIGSERIAL PRIMARY KEY, body BYTEA)"
_BARE = "CREATE TABLE shop_outbox (id BIGSERIAL PRIMARY KEY, topic TEXT, body BYTEA)"
_ORDER = text("INSERT INTO shop_orders (body) VALUES (:body)")
_OUTBOX = text("INSERT INTO shop_outbox (topic, body) VALUES (:topic, :body)")
# What its documentation recommends for many messages, and shorter pauses.
_BATCHED = {
    "fetch_batch_size": 100,
    "terminal_flush_batch_size": 100,
    "min_fetch_interval": 0.001,
    "max_fetch_interval": 0.01,
}

Load = Callable[[AsyncEngine, int, int], Awaitable[float]]


def _numbered(number: int) -> bytes:
    return b"%0*d" % (_DIGITS, number) + BODY[_DIGITS:]


def _number(body: bytes) -> int:
    return int(body[:_DIGITS])


async def _in_tasks(
    engine: AsyncEngine, tasks: int, count: int, work: Callable[[AsyncSession, bytes], Awaitable[object]]
) -> None:
    """Runs `count` transactions in each task, each task with a session of its own."""

    async def run(first: int) -> None:
        async with AsyncSession(engine) as session:
            for number in range(first, first + count):
                await session.execute(_ORDER, {"body": BODY})
                await work(session, _numbered(number))
                await session.commit()

    await asyncio.gather(*(run(task * count) for task in range(tasks)))


async def _rate(tasks: int, count: int, work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return tasks * count / (time.perf_counter() - start)


async def sent(engine: AsyncEngine, tasks: int, count: int) -> float:
    """A row and a message sent within its transaction."""
    database = Database(engine)
    await asyncio.to_thread(database.create_table)
    found = list[int]()
    with scratch() as folder:
        async with txstore.aio.open(folder / "store") as broker:
            await asyncio.to_thread(broker.blocking.create_topic, TOPIC)
            producer = broker.producer(GROUP, database=database)
            async with broker.consumer(GROUP, TOPIC) as consumer:

                async def read() -> None:
                    while len(found) < tasks * count:
                        found.extend(_number(message.body) for message in await consumer.poll(100, None))

                async def work() -> None:
                    await asyncio.gather(
                        read(),
                        _in_tasks(
                            engine,
                            tasks,
                            count,
                            lambda session, body: producer.send(Message(TOPIC, body), session=session),
                        ),
                    )
                    await asyncio.to_thread(forward_all, broker.blocking)

                rate = await _rate(tasks, count, work())
    _must_be_all(found, tasks * count)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM txstore_outbox")) == 0
    return rate


async def faststream(engine: AsyncEngine, tasks: int, count: int, options: dict[str, Any]) -> float:
    """A row and a message published by faststream-outbox."""
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="outbox")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    broker = OutboxBroker(engine, outbox_table=table, logger=None)
    found, is_read = list[int](), asyncio.Event()

    @broker.subscriber(TOPIC, **options)  # type: ignore[untyped-decorator, unused-ignore]
    async def read(body: bytes) -> None:
        found.append(_number(body))
        if len(found) == tasks * count:
            is_read.set()

    await broker.start()

    async def work() -> None:
        await _in_tasks(engine, tasks, count, lambda session, body: broker.publish(body, queue=TOPIC, session=session))
        await is_read.wait()
        await broker.stop()  # Deletes the rows that were read last.

    rate = await _rate(tasks, count, work())
    _must_be_all(found, tasks * count)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM outbox")) == 0
    return rate


async def bare(engine: AsyncEngine, tasks: int, count: int) -> float:
    """The row and a second row, which nobody deletes: what a message in the transaction pays at least."""

    def insert(session: AsyncSession, body: bytes) -> Awaitable[object]:
        return session.execute(_OUTBOX, {"topic": TOPIC, "body": body})

    return await _rate(tasks, count, _in_tasks(engine, tasks, count, insert))


async def alone(engine: AsyncEngine, tasks: int, count: int) -> float:
    """The row alone: what all sides pay anyway."""

    async def nothing(session: AsyncSession, body: bytes) -> None:
        pass

    return await _rate(tasks, count, _in_tasks(engine, tasks, count, nothing))


def _must_be_all(found: list[int], count: int) -> None:
    assert sorted(found) == list(range(count)), f"{len(found)} messages, {len(set(found))} different ones of {count}"


@asynccontextmanager
async def _engine(url: str, tasks: int) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=tasks + 4)
    async with engine.begin() as connection:
        for table in ("shop_orders", "shop_outbox", "outbox"):
            await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
        for sql in (_ORDERS, _BARE):
            await connection.execute(text(sql))
    yield engine
    await engine.dispose()


def _measured(server: Postgres, load: Load, tasks: int, count: int) -> float:
    async def run() -> float:
        async with _engine(url, tasks) as engine:
            return await load(engine, tasks, count)

    url = server.url(server.new())
    rate = asyncio.run(run())
    server.give_back(url)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.database_tasks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--count", type=int, default=100, help="transactions of each task")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    loads: dict[str, Load] = {
        "sent": sent,
        "batched": partial(faststream, options=_BATCHED),
        "default": partial(faststream, options={}),
        "bare": bare,
        "alone": alone,
    }
    start, load_before = time.perf_counter(), os.getloadavg()[0]
    warnings.simplefilter("error")
    with running_postgres(durable=True) as server:
        if server is None:
            sys.exit("PostgreSQL is not installed here\nhint: apt-get install postgresql")
        works = {name: partial(_measured, server, load, given.tasks, given.count) for name, load in loads.items()}
        found = in_turns(given.turns, works)
    print(f"1 KiB bodies, {given.tasks} tasks, medians of {given.turns} turns; load before: {load_before:.1f}\n")
    print("| What | Ours | Compared with | Theirs | Ratio | Goal |\n|---|---|---|---|---|---|")
    what = f"message in the transaction, asyncpg, {given.tasks} tasks"
    for name, theirs, goal in (
        ("batched", "faststream-outbox, deletes by 100", 2.0),
        ("default", "faststream-outbox, its defaults", None),
        ("bare", "two bare rows", 0.9),
        ("alone", "the row alone", None),
    ):
        print(against(what, found["sent"], theirs, found[name], goal).line())
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
