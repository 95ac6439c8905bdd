"""Guards transactions of several messages at brokers in other processes: txstore's, which are killed, and RocketMQ's.

The seed is printed; TXSTORE_REMOTE_SEED repeats it.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.remoting_client.brokers import SMALL, Restarted, Serve
from tests.remoting_client.conftest import SOON
from tests.remoting_client.helpers import COMMIT, ROLLBACK, UNKNOWN, take
from tests.remoting_client.proxy import Proxy
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, TransactionMessage
from txstore.client.broker import RemoteBroker

SEED = int(os.environ.get("TXSTORE_REMOTE_SEED", random.randrange(1 << 30)))
HEARTBEATS: dict[str, Any] = SOON | {"heart_beat_broker_interval": 1, "send_msg_timeout": 3, "end_timeout": 3}
MESSAGES = 5


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Restarted]:
    with Serve(tmp_path / "store", **SMALL) as broker:
        yield broker


class Orders:
    """A thread that publishes orders, each as messages in three topics, and what became visible of them.

    A decision is recorded before the broker is told, and is known to every check.
    """

    def __init__(self, broker: RemoteBroker, topic: str) -> None:
        self.topics = [f"{topic}-{number}" for number in range(3)]
        self.decided: dict[str, LocalTransactionState] = {}
        self.committed: set[int] = set()
        self.failed = 0
        self.positions: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        self._problems: list[BaseException] = []
        self._broker = broker
        self._chance = random.Random(SEED)
        self._over = threading.Event()
        self._producer = broker.transaction_producer(f"g-{topic}", check_listener=self._check)
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _check(self, message: TransactionMessage) -> LocalTransactionState:
        # A check may come first, if the answer to the half messages was lost: then the order is never made.
        return self.decided.setdefault(message.transaction_id or "", ROLLBACK)

    def _publish(self) -> None:
        try:
            for number in itertools.count():
                if self._over.wait(0.002):
                    return
                try:
                    self._publish_one(number)
                except txstore.TxStoreError:
                    self.failed += 1
        except BaseException as problem:
            self._problems.append(problem)

    def _publish_one(self, number: int) -> None:
        messages = [Message(self.topics[at % 3], b"%d-%d" % (number, at)) for at in range(MESSAGES)]
        with self._producer.transaction(messages) as tx:
            state = self.decided.setdefault(tx.transaction_id, self._chance.choice([COMMIT, COMMIT, ROLLBACK]))
            if state is COMMIT:
                self.committed.add(number)
            else:
                tx.rollback()

    def end(self) -> None:
        """Waits until everything committed has arrived, and asserts that nothing else has, nor anything twice."""
        self._over.set()
        self._thread.join()
        assert self._problems == []
        wanted = {f"{number}-{at}" for number in self.committed for at in range(MESSAGES)}

        def take() -> int:
            found = consumer.poll(100, 0.2)
            for message in found:
                position = (message.topic, message.queue_id, message.queue_offset)
                self.positions[message.body.decode()].add(position)
            return len(found)

        def is_settled() -> bool:
            take()
            return wanted <= self.positions.keys() and not self._broker.transactions()

        with self._broker.consumer("readers", self.topics) as consumer:
            eventually(is_settled, 60)
            eventually(lambda: take() == 0)
        assert self.positions.keys() == wanted, "of each order all or none"
        assert [body for body, positions in self.positions.items() if len(positions) > 1] == []


def test_all_or_none_while_the_server_is_killed(serve: Restarted, topic: str) -> None:
    print("seed", SEED)
    with txstore.connect(serve.names, **HEARTBEATS) as broker:
        orders = Orders(broker, topic)
        for _ in range(3):
            before = len(orders.committed)
            eventually(lambda before=before: len(orders.committed) > before + 5, 60)  # type: ignore[misc]
            serve.kill()
            serve.start()
        before = len(orders.committed)
        eventually(lambda: len(orders.committed) > before + 5, 60)
        orders.end()


def test_all_or_none_while_connections_are_cut(serve: Restarted, topic: str) -> None:
    print("seed", SEED)
    with ExitStack() as stack:
        with txstore.connect(serve.names) as direct:
            (address,) = direct._client.addresses()
        broker_proxy = stack.enter_context(Proxy(int(address.rpartition(":")[2])))
        names_proxy = stack.enter_context(Proxy(int(serve.names.rpartition(":")[2])))
        names_proxy.written_over[address.encode()] = broker_proxy.address.encode()
        assert len(address) == len(broker_proxy.address)
        broker = stack.enter_context(txstore.connect(names_proxy.address, **HEARTBEATS))
        orders = Orders(broker, topic)
        eventually(lambda: len(orders.committed) > 5)
        broker_proxy.cuts = random.Random(SEED)
        broker_proxy.drop_all()
        eventually(lambda: broker_proxy.cut > 10, 60)
        broker_proxy.cuts = None
        broker_proxy.drop_all()
        orders.end()


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_server_killed_within_the_block_asks_once_for_all(
    serve: Restarted, topic: str, state: LocalTransactionState
) -> None:
    asked: list[bytes] = []

    def check(message: TransactionMessage) -> LocalTransactionState:
        asked.append(message.body)
        return state

    with txstore.connect(serve.names, **HEARTBEATS) as broker:
        producer = broker.transaction_producer(f"g-{topic}", check_listener=check)
        with suppress(KeyError), producer.transaction([Message(topic, b"%d" % at) for at in range(MESSAGES)]) as tx:
            serve.kill()
            serve.start()
            raise KeyError("the database")
        assert tx.state is UNKNOWN
        eventually(lambda: bool(asked) and not broker.transactions(), 60)
        assert set(asked) == {b"0"}
        wanted = [b"%d" % at for at in range(MESSAGES)] if state is COMMIT else []
        with broker.consumer("readers", topic) as consumer:
            found = [message.body for message in take(consumer, len(wanted))]
            found += [message.body for message in consumer.poll(32, 0.5)]
        assert found == wanted


@pytest.mark.peer
def test_rocketmq_takes_one_message_and_stores_none_of_several(rocketmq_names: str, topic: str) -> None:
    with txstore.connect(rocketmq_names, **SOON) as broker:
        producer = broker.transaction_producer(f"g-{topic}", check_listener=lambda message: ROLLBACK)
        several = producer.transaction([Message(topic, b"1"), Message(topic, b"2")])
        with pytest.raises(txstore.EmbeddedOnlyError, match=r"RocketMQ broker takes one\nhint: .*send_batch"), several:
            pass
        with producer.transaction([Message(topic, b"one")]) as tx:
            pass
        assert tx.state is COMMIT
        with broker.consumer(f"c-{topic}", topic) as consumer:
            found = [*take(consumer, 1), *consumer.poll(32, 1)]
            assert [message.body for message in found] == [b"one"]
