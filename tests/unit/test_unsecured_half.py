"""Guards half messages that a broker stores without the copies or the sync that it promises (codes 10, 11 and 12).

The producer rolls them back as RocketMQ's does, and the local transaction does not run: with `connect`, with asyncio
and over the socket of the store. A source whose only replica never says that it has copied anything answers 12; a proxy
makes 10 and 11 of it, which other brokers send.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.remoting_client.proxy import Proxy
from tests.unit.test_administration import Unknown
from tests.unit.test_replica import bodies, caught_up, replica, serve
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, Server
from txstore.client.options import ConnectConfig
from txstore.database import Database
from txstore.errors import BrokerRefusedError
from txstore.server.replication import Source

PATIENT: dict[str, Any] = {
    "send_msg_timeout": 60,
    "end_timeout": 60,
    "request_timeout": 60,
    "retry_times_when_send_failed": 100,
}
CODES = (10, 11, 12)


class Ran(Unknown):
    """A local transaction that notes that it ran."""

    def __init__(self) -> None:
        self.count = 0

    def execute_local_transaction(self, message: Any, arg: object) -> LocalTransactionState:
        self.count += 1
        return LocalTransactionState.COMMIT


class RollsBack(Ran):
    """The same, and no trace of it is found."""

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK


@contextlib.contextmanager
def silent_replica(source: Server) -> Iterator[None]:
    """A replica that is connected, and never says that it has copied anything."""
    assert source.address is not None
    stopped = threading.Event()
    with (
        Source(source.address, ConnectConfig()) as first,
        Source(source.address, ConnectConfig()) as second,
    ):

        def ask(asking: Source) -> None:
            fields = {"replica": "silent", "visible": str(1 << 62), "acknowledged": "0", "heldMillis": "100"}
            offset = 0
            while not stopped.is_set():
                # It counts as connected while the request is held, which is until there is more.
                _, piece = asking.copy(fields | {"offset": str(offset)})
                offset += len(piece)

        # Two, so that one which has no processor for a while does not look like a replica that has left.
        threads = [threading.Thread(target=ask, args=(asking,)) for asking in (first, second)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: source.native.replicas() != [])
            yield
        finally:
            stopped.set()
            for thread in threads:
                thread.join()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path / "source", replicas_required=2, replica_timeout=1.0) as source:
        yield source


@contextlib.contextmanager
def answering(source: Server, code: int) -> Iterator[str]:
    """The address of a proxy that answers with this code where the source answers with 12."""
    assert source.address is not None
    with Proxy(int(source.address.rpartition(":")[2])) as proxy:
        proxy.written_over = {
            b'"code":12,': b'"code":%d,' % code,
            # So that the client stays at the proxy.
            source.address.encode(): proxy.address.encode(),
        }
        yield proxy.address


def all_are_rolled_back(tmp_path: Path, source: Server, count: int) -> None:
    """The rollbacks are in the log, and nothing is in the topic once everything is copied."""
    with replica(tmp_path / "copy", source) as copy:
        caught_up(copy, source)
        assert source.broker.stat().pending_transactions == 0
        assert source.counters()["ends_rolled_back"] == count
        assert "orders" not in source.broker.topics() or bodies(source, "orders") == []


@pytest.mark.parametrize("code", CODES)
def test_blocking_producer_rolls_back(tmp_path: Path, source: Server, code: int) -> None:
    listener = Ran()
    with (
        silent_replica(source),
        answering(source, code) as address,
        txstore.connect(address, **PATIENT) as client,
        client.transaction_producer("shop", listener) as producer,
    ):
        with pytest.raises(BrokerRefusedError, match="not secured") as refused:
            producer.send_in_transaction(Message("orders", b"1"))
        assert refused.value.code == code
        with pytest.raises(BrokerRefusedError, match="not secured"), producer.transaction(Message("orders", b"2")):
            listener.count += 1
        several = [Message("orders", b"3"), Message("orders", b"4")]
        with pytest.raises(BrokerRefusedError, match="not secured"), producer.transaction(several):
            listener.count += 1
    assert listener.count == 0
    all_are_rolled_back(tmp_path, source, 3)


@pytest.mark.parametrize("code", CODES)
def test_asyncio_producer_rolls_back(tmp_path: Path, source: Server, code: int) -> None:
    listener = Ran()

    async def send(address: str) -> None:
        async with (
            txstore.aio.connect(address, **PATIENT) as client,
            client.transaction_producer("shop", listener) as producer,
        ):
            with pytest.raises(BrokerRefusedError, match="not secured"):
                await producer.send_in_transaction(Message("orders", b"1"))
            for messages in (Message("orders", b"2"), [Message("orders", b"3"), Message("orders", b"4")]):
                with pytest.raises(BrokerRefusedError, match="not secured"):
                    async with producer.transaction(messages):
                        listener.count += 1

    with silent_replica(source), answering(source, code) as address:
        asyncio.run(send(address))
    assert listener.count == 0
    all_are_rolled_back(tmp_path, source, 3)


def test_producer_of_a_shared_store_rolls_back(tmp_path: Path, source: Server) -> None:
    """The server has the store open, so a process that shares it uses the server."""
    listener = Ran()
    with (
        silent_replica(source),
        txstore.open(tmp_path / "source", shared=True) as client,
        client.transaction_producer("shop", listener) as producer,
    ):
        with pytest.raises(BrokerRefusedError, match="not secured"):
            producer.send_in_transaction(Message("orders", b"1"))
        several = [Message("orders", b"2"), Message("orders", b"3")]
        with pytest.raises(BrokerRefusedError, match="not secured"), producer.transaction(several):
            listener.count += 1
    assert listener.count == 0
    all_are_rolled_back(tmp_path, source, 2)


def test_row_of_a_database_stays_until_its_message_is_copied(tmp_path: Path, source: Server) -> None:
    """The row is what remains of the message if the source is lost. It is sent again, and stored once."""
    assert source.address is not None
    database = Database(tmp_path / "shop.db")
    database.create_table()

    with txstore.connect(source.address, **PATIENT) as client:
        producer = client.producer("shop", database=database)
        (forwarder,) = client.outboxes.forwarders()
        with silent_replica(source):
            with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as session, session:
                producer.send(Message("orders", b"1"), session=session)
            eventually(lambda: source.native.sent() != [])
            threading.Event().wait(1.5)  # Some more times, it is sent and answered with 12.
            assert forwarder.status().rows == 1
        with replica(tmp_path / "copy", source):
            eventually(lambda: forwarder.status().rows == 0)
            assert bodies(source, "orders") == [b"1"]


class LastAnswer(Proxy):
    """Passes nothing on to the source after its answer to a half message, and lets nobody connect, until `mend`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._broken = threading.Event()
        super().__init__(int(source.rpartition(":")[2]))

    def mend(self) -> None:
        assert self._broken.is_set()
        self._broken.clear()

    def _pass_on(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                if back and b'"code":12,' in data:
                    self._broken.set()
                elif self._broken.is_set():
                    break
                other.sendall(data.replace(self._source.encode(), self.address.encode()) if back else data)
        self._end(one, other)


def test_check_rolls_back_what_the_producer_could_not(tmp_path: Path) -> None:
    """The connection breaks before the rollback is sent. A check comes later, and is answered."""
    soon: dict[str, Any] = {
        "transaction_check_interval": 0.05,
        "transaction_timeout": 0,
        "transaction_check_max": 10_000,
    }
    listener = RollsBack()
    with serve(tmp_path / "source", replicas_required=2, replica_timeout=1.0, **soon) as source:
        assert source.address is not None
        source.broker.create_topic("orders", 1)
        with (
            LastAnswer(source.address) as proxy,
            txstore.connect(proxy.address, **PATIENT) as client,
            client.transaction_producer("shop", listener) as producer,
        ):
            with silent_replica(source), pytest.raises(BrokerRefusedError, match="a check rolls it back"):
                producer.send_in_transaction(Message("orders", b"1"))
            assert source.counters()["ends_rolled_back"] == 0
            proxy.mend()
            with replica(tmp_path / "copy", source):
                eventually(lambda: source.counters()["ends_rolled_back"] == 1)
        assert listener.count == 0
