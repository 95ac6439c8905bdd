"""Guards messages within the user's own transaction on asyncio for a broker in another process: `txstore.aio.connect`.

On SQLite, and on a real PostgreSQL where that is installed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

import txstore
import txstore.aio
from tests.database.conftest import Kind, commit, new_kind, rollback
from tests.database.served import Served, served, store
from tests.database.test_outbox_aio import KINDS, begun, stored
from tests.waiting import eventually
from txstore import Message, errors
from txstore.aio import RemoteBroker
from txstore.client import outbox_log
from txstore.database import Database
from txstore.database.outbox import AsyncOutboxProducer

__all__ = ["served", "store"]

Work = Callable[[RemoteBroker, AsyncOutboxProducer], Awaitable[None]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        yield found


def on_loop(database: Database, address: str, work: Work, *, send_msg_timeout: float = 60) -> None:
    """Runs `work` with a connected broker and a producer."""

    async def run() -> None:
        options: dict[str, Any] = {"send_msg_timeout": send_msg_timeout, "reconnect_back_off_max": 0.1}
        async with txstore.aio.connect(address, **options) as broker:
            await work(broker, broker.producer("order-service", database=database))
        if isinstance(database.source, AsyncEngine):
            await database.source.dispose()

    asyncio.run(run())


def rows(kind: Kind) -> Any:
    return kind.rows("SELECT count(*) FROM txstore_outbox")[0][0]


def test_message_is_sent_with_the_commit_only(kind: Kind, database: Database, store: Path, served: Served) -> None:
    async def work(_: RemoteBroker, producer: AsyncOutboxProducer) -> None:
        async with begun(kind) as session:
            await kind.order(session, 1, "a")
            receipt = await producer.send(Message("orders", b"1"), session=session)
            assert (len(receipt.message_id), receipt.topic) == (32, "orders")
            await producer.send_batch([Message("orders", b"2"), Message("orders", b"3")], session=session)
            await commit(session)
        async with begun(kind) as session:
            await producer.send(Message("orders", b"rolled back"), session=session)
            await rollback(session)
        await producer.send(Message("orders", b"at once"), session=None)
        while (await producer.outbox_status()).rows:
            await asyncio.sleep(0.01)
        connection = sqlite3.connect(":memory:")
        with pytest.raises(errors.InvalidOptionError, match="this producer is async"):
            await producer.send(Message("orders", b"no"), session=connection)  # type: ignore[call-overload]
        connection.close()

    on_loop(database, served.address, work)
    assert rows(kind) == 0
    served.kill()
    assert sorted(stored(store)) == [b"1", b"2", b"3", b"at once"]


@pytest.mark.kill
@pytest.mark.parametrize("kind", ["aiosqlite", "asyncpg"], indirect=True)
def test_broker_is_away_while_tasks_commit(kind: Kind, database: Database, store: Path, served: Served) -> None:
    async def work(broker: RemoteBroker, _: AsyncOutboxProducer) -> None:
        served.kill()
        producer = broker.producer("order-service", database=Database(kind.source))
        async with begun(kind) as session:
            with pytest.raises(errors.BrokerUnreachableError):  # Nobody has told which log it is.
                await producer.send(Message("orders", b"no"), session=session)
            await rollback(session)
        served.start()
        for number in range(60):
            if number == 20:
                served.kill()
            async with begun(kind) as session:
                await kind.order(session, number, "a")
                await producer.send(Message("orders", b"%d" % number, message_group="g"), session=session)
                await commit(session)
        served.start()
        while (await producer.outbox_status()).rows:
            await asyncio.sleep(0.01)

    on_loop(database, served.address, work, send_msg_timeout=0.5)
    served.kill()
    assert stored(store) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("kind", ["sqlalchemy sqlite async", "sqlalchemy asyncpg"], indirect=True)
def test_a_producer_forwards_what_another_left(
    kind: Kind, database: Database, store: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so when it is created, without a send."""
    monkeypatch.setattr(outbox_log, "_TAKE_OVER_SECONDS", 0.3)

    async def leave(_: RemoteBroker, producer: AsyncOutboxProducer) -> None:
        async with begun(kind) as session:
            await producer.send(Message("orders", b"left"), session=session)
            await commit(session)

    async def wait(_: RemoteBroker, __: AsyncOutboxProducer) -> None:
        await asyncio.to_thread(eventually, lambda: rows(kind) == 0)

    with monkeypatch.context() as broken:
        broken.setattr("txstore.database.outbox.forwarder.Forwarder.start", lambda _: None)
        broken.setattr("txstore.database.outbox.forwarder.Forwarder.inserted", lambda *_, **__: ())
        on_loop(database, served.address, leave)
    assert rows(kind) == 1
    on_loop(Database(kind.source), served.address, wait)
    served.kill()
    assert stored(store) == [b"left"]
