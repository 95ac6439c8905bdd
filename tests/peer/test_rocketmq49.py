"""Guards stores and brokers of RocketMQ 4.9: txstore takes such a store over and gives it back, and is its client."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.peer.rocketmq import SIZES, NoPeerError
from tests.peer.rocketmq49 import RocketMQ49
from tests.remoting_client.helpers import take
from txstore import LocalTransactionState, Message

pytestmark = pytest.mark.peer

MESSAGES = 300


@pytest.fixture
def rocketmq(tmp_path: Path) -> RocketMQ49:
    try:
        return RocketMQ49(tmp_path / "home", tmp_path / "store")
    except NoPeerError as problem:
        pytest.skip(str(problem))


def bodies(messages: range) -> set[bytes]:
    return {b"%d" % number for number in messages}


def undecided(_: txstore.TransactionMessage) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


def test_store_is_taken_over_and_given_back(rocketmq: RocketMQ49, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with rocketmq, txstore.connect(rocketmq.names, send_msg_timeout=30) as client:
        producer = client.producer("producers")
        for number in range(MESSAGES):
            producer.send(Message("orders", b"%d" % number, keys=[f"o-{number}"], tags="t"))
        transactions = client.transaction_producer("payers", check_listener=undecided)
        with transactions.transaction(Message("orders", b"committed")):
            pass
        with suppress(ZeroDivisionError), transactions.transaction(Message("orders", b"pending")):
            raise ZeroDivisionError
        with client.consumer("readers", "orders") as consumer:
            found = {message.body for message in take(consumer, MESSAGES + 1)}
        assert found == bodies(range(MESSAGES)) | {b"committed"}

    sizes: dict[str, Any] = {**SIZES}
    with txstore.open(store, **sizes) as broker:
        assert sum(extent.end - extent.first for extent in broker.queues("orders")) == MESSAGES + 1
        (found_by_key,) = broker.query("orders", "o-17")
        assert found_by_key.body == b"17"
        (pending,) = broker.transactions("pending")
        broker.end_transaction(pending.transaction_id, LocalTransactionState.COMMIT)
        broker.producer("producers").send_batch([Message("orders", body) for body in bodies(range(1_000, 1_100))])

    with rocketmq, txstore.connect(rocketmq.names, send_msg_timeout=30) as client:
        client.producer("producers").send(Message("orders", b"last"))
        with client.consumer("later_readers", "orders") as consumer:
            found = {message.body for message in take(consumer, MESSAGES + 103)}
        assert found == bodies(range(MESSAGES)) | bodies(range(1_000, 1_100)) | {b"committed", b"pending", b"last"}
