"""Guards stores that txstore cannot continue: opening one for writing is refused by name, before any change.

Each is made by a real broker with the setting that leads to it; only half messages in another queue than 0, and records
of the RocksDB transaction topics, cannot be made by a client: those directories are made by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import txstore
from tests.peer.rocketmq import SHORT_TIMES, SMALL, VERSION, Facts, Peer, Producer, message
from tests.peer.test_theirs_to_ours import hashes
from txstore import errors
from txstore._native import Store

pytestmark = pytest.mark.peer

Act = Callable[[Producer], object]
BATCH_TOPIC: Facts = {
    "topicName": "Batch",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "attributes": {"queue.type": "BatchCQ"},
}


def send_one(producer: Producer) -> None:
    (told,) = producer.send([message("Orders", b"one")])
    assert told["status"] == "SEND_OK", told


def send_late(producer: Producer) -> None:
    (told,) = producer.send([message("Orders", b"in a minute", delay_ms=60_000)])
    assert told["status"] == "SEND_OK", told


def send_batch(producer: Producer) -> None:
    told = producer.batch([message("Batch", b"one"), message("Batch", b"two")])
    assert told["status"] == "SEND_OK", told


@dataclass(frozen=True)
class Kind:
    """A kind of store: a broker's settings, what is sent, what the refusal names."""

    name: str
    names: str
    config: Facts = field(default_factory=dict)
    topics: Facts = field(default_factory=dict)
    act: Act = send_one


KINDS = [
    Kind("queues in RocksDB", "consumequeue/CURRENT.*RocksDB", {"storeType": "defaultRocksDB"}),
    Kind("queues in RocksDB as well", "consumequeue/CURRENT.*RocksDB", {"rocksdbCQDoubleWriteEnable": True}),
    Kind("timer wheel", "rmq_sys_wheel_timer", {"timerWheelEnable": True}, act=send_late),
    Kind(
        "timer in RocksDB", "rmq_sys_wheel_timer", {"timerWheelEnable": True, "timerRocksDBEnable": True}, act=send_late
    ),
    # A reader takes a batch's one record for one message; RocketMQ counts two.
    Kind("batch queues", "batchconsumequeue", topics={"Batch": BATCH_TOPIC}, act=send_batch),
    Kind("extended queues", "consumequeue_ext", {"enableConsumeQueueExt": True}),
]
BY_HAND = {
    "half queues": ("consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/1", "more than one queue"),
    "transactions in RocksDB": ("consumequeue/RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC/0", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_unsupported_store_of_a_broker_is_refused_by_name(rocketmq: Peer, tmp_path: Path, kind: Kind) -> None:
    if VERSION >= "5.5" and "rocksdbCQDoubleWriteEnable" in kind.config:
        pytest.skip("RocketMQ 5.5 does not start with this setting alone")
    store = tmp_path / "store"
    if kind.topics:
        (store / "config").mkdir(parents=True)
        (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": kind.topics}))
    config = SMALL | kind.config
    with (
        rocketmq.broker(store, config=config, settings=SHORT_TIMES) as broker,
        rocketmq.producer(broker.names, "g") as producer,
    ):
        kind.act(producer)
    assert_refused(store, kind.names)
    with closing(Store.open(str(store), read_only=True)) as ours:
        assert sum(end - first for _, _, first, end in ours.queues()) >= 1, "reading still works"


@pytest.mark.parametrize("name", BY_HAND)
def test_unsupported_store_made_by_hand_is_refused_by_name(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    directory, names = BY_HAND[name]
    txstore.open(store, mapped_file_size_commit_log=1 << 20).close()
    (store / directory).mkdir(parents=True)
    (store / directory / ("0" * 20)).write_bytes(bytes(20_000))
    assert_refused(store, names)


def test_dledger_store_is_refused_by_name(rocketmq: Peer, tmp_path: Path) -> None:
    """Its log is elsewhere, so it cannot be read either."""
    store = tmp_path / "store"
    config = SMALL | {"enableDLegerCommitLog": True, "dLegerGroup": "peer", "dLegerSelfId": "n0"}
    with rocketmq.broker(store, config=config | {"dLegerPeers": f"n0-127.0.0.1:{rocketmq.free_port()}"}):
        pass
    assert_refused(store, "dledger-n0.*DLedger")
    with pytest.raises(errors.ForeignStoreError, match="DLedger"):
        Store.open(str(store), read_only=True)


def assert_refused(store: Path, names: str) -> None:
    before = hashes(store)
    with pytest.raises(errors.ForeignStoreError, match=names):
        txstore.open(store)
    assert hashes(store) == before
