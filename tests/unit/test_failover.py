"""Guards clients that know both nodes: they read from the replica while the source is gone, and continue at the
promoted one.

Both nodes are servers of this process. Consumers, producers and checks of one connection live through all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.ports import free_port
from tests.unit.test_administration import Unknown
from tests.unit.test_replica import Committing, bodies, caught_up, serve
from tests.waiting import eventually
from txstore import Message, RemoteBroker, Server
from txstore.client.options import ConnectConfig
from txstore.errors import InvalidOptionError, TxStoreError
from txstore.server.replication import Source

SOON: dict[str, Any] = {
    "poll_name_server_interval": 0.5,
    "heart_beat_broker_interval": 0.5,
    "rebalance_interval": 0.5,
    "reconnect_back_off": 0.05,
    "reconnect_back_off_max": 0.5,
}


class Pair:
    """A source and a replica at fixed addresses."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        checks = {"transaction_check_interval": 0.5, "transaction_timeout": 0.5, "transaction_check_max": 10_000}
        self._options = checks | options
        self._ports = free_port(), free_port()
        self.source: Server | None = self._serve(0)
        self.source.broker.create_topic("orders")  # So that a first send writes no tables within its 3 s.
        self.copy: Server | None = None
        self.follow()

    @property
    def addresses(self) -> str:
        """What clients of both connect to."""
        return ";".join(f"127.0.0.1:{port}" for port in self._ports)

    def _serve(self, node: int, **options: Any) -> Server:
        name, listen = ("source", "copy")[node], f"127.0.0.1:{self._ports[node]}"
        given = self._options | {"listen": listen, "name_server": None} | options
        return serve(self._folder / name, **given)

    def follow(self) -> None:
        """Starts the replica, and waits until the source names it in routes."""
        assert self.source is not None
        self.copy = self._serve(1, replica_of=self.source.address)
        copy, source = self.copy, self.source
        eventually(lambda: source.nodes.addresses().get("1") == copy.address)
        eventually(lambda: copy.nodes.addresses() == source.nodes.addresses())

    def caught_up(self) -> None:
        assert self.copy is not None
        assert self.source is not None
        caught_up(self.copy, self.source)

    def lose_source(self) -> None:
        """Closes the source, and waits until the replica names itself alone."""
        assert self.copy is not None
        assert self.source is not None
        self.source.close()
        self.source, copy = None, self.copy
        eventually(lambda: copy.nodes.addresses() == {"1": copy.address})

    def promote(self) -> Server:
        assert self.copy is not None
        assert self.copy.address is not None
        with Source(self.copy.address, ConnectConfig()) as operated:
            operated.call("promote", lose_messages=True)
        self.source, self.copy = promoted, _ = self.copy, None
        eventually(lambda: promoted.ready and promoted.role == "source")
        return promoted

    def close(self) -> None:
        for server in (self.copy, self.source):
            if server is not None:
                server.close()


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def tried(call: Callable[[], object]) -> bool:
    """Whether a call succeeds now. While no node accepts it, it is refused or times out."""
    try:
        call()
    except TxStoreError:
        return False
    return True


def read_all(consumer: txstore.Consumer, wanted: set[bytes]) -> None:
    found: set[bytes] = set()

    def more() -> bool:
        found.update(message.body for message in consumer.poll(timeout=1.0))
        return wanted <= found

    eventually(more)


def numbers(first: int, end: int) -> set[bytes]:
    return {b"%d" % number for number in range(first, end)}


def test_source_and_replica_name_both_nodes(pair: Pair) -> None:
    assert pair.source is not None
    assert pair.copy is not None
    both = {"0": pair.source.address, "1": pair.copy.address}
    assert pair.source.nodes.addresses() == pair.copy.nodes.addresses() == both
    copy, source = pair.copy, pair.source
    copy.close()
    eventually(lambda: source.nodes.addresses() == {"0": source.address})


def test_clients_read_from_the_replica_and_continue_after_a_promotion(pair: Pair) -> None:
    with txstore.connect(pair.addresses, **SOON) as client:
        producer = client.producer("shop")
        for body in sorted(numbers(0, 40)):
            producer.send(Message("orders", body))
        pair.caught_up()
        with client.consumer("shipping", "orders") as consumer:
            read_all(consumer, numbers(0, 40))
            for body in sorted(numbers(40, 60)):
                producer.send(Message("orders", body))
            pair.caught_up()
            pair.lose_source()
            read_all(consumer, numbers(40, 60))
            with pytest.raises(TxStoreError):
                producer.send(Message("orders", b"nowhere"))
            promoted = pair.promote()
            for body in sorted(numbers(60, 80)):
                message = Message("orders", body)
                eventually(lambda message=message: tried(lambda: producer.send(message)))  # type: ignore[misc]
            read_all(consumer, numbers(60, 80))
        # The offsets that the replica refused are known to the promoted one.
        eventually(lambda: sum(row.lag for row in promoted.broker.lag("shipping")) == 0)
        assert set(bodies(promoted, "orders")) >= numbers(0, 80)


def test_consumer_that_comes_while_the_source_is_gone_reads_from_the_replica(pair: Pair) -> None:
    with txstore.connect(pair.addresses, **SOON) as client:
        producer = client.producer("shop")
        for body in sorted(numbers(0, 20)):
            producer.send(Message("orders", body))
        with client.consumer("shipping", "orders") as consumer:
            read_all(consumer, numbers(0, 20))
        for body in sorted(numbers(20, 30)):
            producer.send(Message("orders", body))
        pair.caught_up()
        assert pair.copy is not None
        copy = pair.copy.broker
        eventually(lambda: copy.has_group("shipping") and sum(row.lag for row in copy.lag("shipping")) == 10)
        pair.lose_source()
    with txstore.connect(pair.addresses, **SOON) as client:
        consumer = client.consumer("shipping", "orders")
        read_all(consumer, numbers(20, 30))
        consumer.acknowledge()
        with pytest.raises(TxStoreError, match="replica"):
            consumer.close()  # Its offsets have no one to keep them.
        pair.promote()


def test_checks_and_ends_continue_after_a_promotion(pair: Pair) -> None:
    """A transaction that is undecided, one that runs across the promotion, and one that begins after it."""
    with txstore.connect(pair.addresses, **SOON) as client, client.transaction_producer("shop", Committing()) as shop:
        with client.transaction_producer("other", Unknown()) as other:
            running = other.transaction(Message("orders", b"running"))
            with running as tx:
                shop.send_in_transaction(Message("orders", b"committed"))
                client.transaction_producer("shop", Committing())
                pair.caught_up()
                pair.lose_source()
                promoted = pair.promote()
                eventually(lambda: tried(lambda: client.producer("shop").send(Message("orders", b"new"))))
                tx.commit()
            assert running.error is None
        eventually(lambda: set(bodies(promoted, "orders")) >= {b"committed", b"running", b"new"})
        shop.send_in_transaction(Message("orders", b"after"))
        eventually(lambda: b"after" in bodies(promoted, "orders"))
        assert promoted.broker.stat().pending_transactions == 0


def test_half_message_of_the_lost_source_is_checked_by_the_promoted_one(pair: Pair) -> None:
    class Late(Committing):
        """Does not know the outcome before the promotion."""

        known = False

        def check_local_transaction(self, message: Any) -> txstore.LocalTransactionState:
            return super().check_local_transaction(message) if self.known else txstore.LocalTransactionState.UNKNOWN

    listener = Late()
    with txstore.connect(pair.addresses, **SOON) as client, client.transaction_producer("shop", listener) as producer:
        producer.send_in_transaction(Message("orders", b"late"))
        pair.caught_up()
        pair.lose_source()
        promoted = pair.promote()
        listener.known = True
        eventually(lambda: "orders" in promoted.broker.topics() and bodies(promoted, "orders") == [b"late"])


def test_asyncio_client_continues_after_a_promotion(pair: Pair) -> None:
    async def work() -> None:
        async with txstore.aio.connect(pair.addresses, **SOON) as client:
            producer = client.producer("shop")
            await producer.send(Message("orders", b"1"))
            async with client.consumer("shipping", "orders") as consumer:
                await _reads(consumer, b"1")
                await producer.send(Message("orders", b"2"))
                await asyncio.to_thread(pair.caught_up)
                await asyncio.to_thread(pair.lose_source)
                await _reads(consumer, b"2")
                await asyncio.to_thread(pair.promote)
                while True:
                    try:
                        await producer.send(Message("orders", b"3"))
                    except TxStoreError:
                        await asyncio.sleep(0.05)
                    else:
                        break
                await _reads(consumer, b"3")

    asyncio.run(asyncio.wait_for(work(), 120))


async def _reads(consumer: Any, body: bytes) -> None:
    while body not in [message.body for message in await consumer.poll(timeout=1.0)]:
        pass


def test_replica_under_another_broker_name_is_refused(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "source") as source,
        serve(tmp_path / "copy", replica_of=source.address, broker_name="other") as copy,
    ):
        found = copy.replica
        assert found is not None
        eventually(lambda: found.failure is not None)
        assert isinstance(found.failure, InvalidOptionError)
        assert "--set broker_name=txstore" in str(found.failure)


def test_old_source_that_is_asked_first_does_not_hide_the_new_one(pair: Pair) -> None:
    """Each node is asked until one names a master: a replica that hears nothing of its source names none."""
    assert pair.source is not None
    assert pair.copy is not None
    assert pair.copy.replica is not None
    pair.copy.replica.stop()
    copy = pair.copy
    eventually(lambda: copy.nodes.addresses() == {"1": copy.address})
    backwards = ";".join(reversed(pair.addresses.split(";")))
    with txstore.connect(backwards, **SOON) as client:
        assert isinstance(client, RemoteBroker)
        client.producer("shop").send(Message("orders", b"1"))
        assert bodies(pair.source, "orders") == [b"1"]
