"""Guards shared stores on asyncio: tasks of several processes use one store, through the death of the one that writes.

The other processes are those of `test_shared`, which are blocking: both kinds share one store.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import txstore
import txstore.aio
from tests.unit.test_shared import Process, start, store
from txstore import LocalTransactionState, Message
from txstore.broker.local_socket import read_holder
from txstore.client.client import Client

__all__ = ["start", "store"]
T = TypeVar("T")


async def read(broker: txstore.aio.Broker, count: int) -> list[bytes]:
    async with asyncio.timeout(60), broker.consumer("readers", "orders") as consumer:
        found: list[bytes] = []
        while len(found) < count:
            found += [message.body for message in await consumer.poll(32, 0.5)]
    return sorted(found)


async def patiently(work: Awaitable[T]) -> T:
    async with asyncio.timeout(60):
        return await work


def test_the_loop_writes_for_another_process(store: Path, start: Callable[..., Process]) -> None:
    async def serve() -> None:
        async with txstore.aio.open(store, shared=True) as broker:
            assert broker.is_writer
            assert broker.path == str(store)
            await broker.producer("group").send(Message("orders", b"mine"))
            other = await asyncio.to_thread(start)
            await asyncio.to_thread(other.run, "broker.producer('group').send(Message('orders', b'theirs'))")
            assert await read(broker, 2) == [b"mine", b"theirs"]
            await asyncio.to_thread(other.close)

    asyncio.run(serve())
    assert read_holder(str(store)) is None
    with txstore.open(store, shared=True) as blocking:
        assert blocking.is_writer


def test_tasks_continue_after_the_death_of_the_writer(store: Path, start: Callable[..., Process]) -> None:
    writer = start()

    async def work() -> None:
        async with txstore.aio.open(store, shared=True) as broker:
            wrote = broker.is_writer
            producer = broker.transaction_producer("payments", check_listener=lambda _: LocalTransactionState.ROLLBACK)
            await producer.send(Message("orders", b"before"))
            half = await producer.transaction(Message("orders", b"paid")).__aenter__()
            writer.kill(signal.SIGKILL)
            await patiently(half.commit())
            await asyncio.gather(*(producer.send(Message("orders", b"%02d" % number)) for number in range(50)))
            assert [wrote, broker.is_writer] == [False, True]
            assert await read(broker, 52) == sorted([b"before", b"paid", *(b"%02d" % number for number in range(50))])
            assert await broker.transactions() == []

    asyncio.run(work())


def test_a_loop_that_declines_never_writes(store: Path) -> None:
    async def decline() -> None:
        async with txstore.aio.open(store, shared=True, writer=False, open_timeout=0.1):
            pass

    txstore.open(store).close()
    with pytest.raises(txstore.BrokerUnreachableError, match="no process has stated a socket"):
        asyncio.run(decline())


def test_opening_that_fails_leaves_the_store_to_others(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(client: Any) -> None:
        await found(client)
        raise txstore.BrokerTimeoutError("too late")

    async def open_in_vain() -> None:
        async with txstore.aio.open(store, shared=True):
            pass

    found = Client.find_brokers
    monkeypatch.setattr(Client, "find_brokers", fail)
    with pytest.raises(txstore.BrokerTimeoutError, match="too late"):
        asyncio.run(open_in_vain())
    monkeypatch.undo()
    with txstore.open(store) as broker:
        assert not broker.closed


def test_a_plain_loop_answers_shared_processes(store: Path, start: Callable[..., Process]) -> None:
    async def serve() -> None:
        async with txstore.aio.open(store) as broker:
            await broker.producer("group").send(Message("orders", b"mine"))
            other = await asyncio.to_thread(start)
            await asyncio.to_thread(other.run, "broker.producer('group').send(Message('orders', b'theirs'))")
            assert await asyncio.to_thread(other.run, "print(broker.is_writer)") == "False"
            assert await read(broker, 2) == [b"mine", b"theirs"]

    asyncio.run(serve())


def test_a_plain_loop_may_open_no_socket(store: Path) -> None:
    async def open_without() -> bool:
        async with txstore.aio.open(store, listen=False) as broker:
            return broker.blocking.local_socket is None

    assert asyncio.run(open_without())


def test_declining_needs_sharing(store: Path) -> None:
    open_any: Any = txstore.aio.open
    with pytest.raises(txstore.InvalidOptionError, match="writer=False needs shared=True"):
        open_any(store, writer=False)
    assert not store.exists()
