"""Guards what a RocketMQ broker makes of our transactions of several messages when it takes the store over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from tests.remoting_client.conftest import BROKER_SETTINGS, SOON
from tests.waiting import eventually
from txstore import ConsumeFromWhere, LocalTransactionState, Message, TransactionMessage

pytestmark = pytest.mark.peer

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
TOPICS = ("Orders", "Payments", "Letters")
STORE: dict[str, Any] = peer.SIZES | {"transaction_timeout": 3600}


class Asked:
    """Answers by the transaction id, as a service does that stores it with its rows."""

    def __init__(self) -> None:
        self.committed: set[str | None] = set()
        self.bodies: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, message: TransactionMessage) -> LocalTransactionState:
        with self._lock:
            self.bodies.append(message.body)
        return COMMIT if message.transaction_id in self.committed else ROLLBACK


def seen(path: Path) -> list[bytes]:
    """The bodies of all visible messages, without opening the store for writing."""
    with txstore.open(path, read_only=True) as broker:
        return sorted(message.body for message in bodies(broker))


def bodies(broker: txstore.EmbeddedBroker) -> Iterator[txstore.StoredMessage]:
    for queue in broker.queues():
        if queue.topic in TOPICS:
            yield from broker.read(queue.topic, queue.queue_id, queue.first, 1000)[0]


def test_broker_checks_each_half_and_gets_one_answer(peer_home: peer.Home, tmp_path: Path) -> None:
    path, asked = tmp_path / "store", Asked()
    with txstore.open(path, **STORE) as broker:
        producer = broker.transaction_producer("shop", check_listener=lambda message: LocalTransactionState.UNKNOWN)
        for name in ("kept", "gone", "ended"):
            tx = producer.transaction([Message(TOPICS[at % 3], f"{name}-{at}".encode()) for at in range(7)])
            tx.__enter__()
            if name == "kept":
                asked.committed.add(tx.transaction_id)
            if name == "ended":
                tx.commit()
    ended, kept = ([f"{name}-{at}".encode() for at in range(7)] for name in ("ended", "kept"))
    assert seen(path) == ended
    with (
        peer_home.start() as process,
        process.broker(path, config=peer.SMALL, settings=BROKER_SETTINGS) as running,
        txstore.connect(running.names, **SOON) as remote,
        remote.transaction_producer("shop", check_listener=asked),
    ):
        # Each of the fourteen halves is asked for by itself, and the answers are those of two transactions.
        eventually(lambda: len(set(asked.bodies)) == 14, seconds=120)
        with remote.consumer("reader", list(TOPICS), start=ConsumeFromWhere.FIRST) as consumer:
            found: set[bytes] = set()

            def all_arrived() -> bool:
                found.update(message.body for message in consumer.poll(100, timeout=1))
                return found >= {*ended, *kept}

            eventually(all_arrived, seconds=120)
        assert found == {*ended, *kept}
    assert sorted(set(seen(path))) == sorted({*ended, *kept})
    with txstore.open(path, **STORE) as broker:
        assert broker.stat().pending_transactions == 0
        assert {message.body for message in bodies(broker)} == {*ended, *kept}
