"""Guards deletion: a deleted topic or group is gone, and one created later under its name does not mix with it,
whatever is rebuilt meanwhile.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.conftest import OpenStore, Scripted, bodies
from tests.waiting import eventually
from txstore import (
    ConsumeFromWhere,
    EmbeddedBroker,
    InUseError,
    InvalidNameError,
    LocalTransactionState,
    Message,
    MessageNotFoundError,
    ReadOnlyError,
)
from txstore.inspection.verify import verify


def fill(broker: EmbeddedBroker, topic: str, count: int = 5) -> None:
    with broker.producer("shop") as producer:
        for number in range(count):
            producer.send(Message(topic, f"{topic} {number}".encode(), keys=["k"]), queue_id=0)


def consumed(
    broker: EmbeddedBroker, group: str, topic: str, start: ConsumeFromWhere = ConsumeFromWhere.FIRST
) -> list[bytes]:
    with broker.consumer(group, topic, start=start) as consumer:
        found = [message.body for message in consumer.poll(100)]
        consumer.acknowledge()
    return found


def assert_well(broker: EmbeddedBroker) -> None:
    found = verify(broker.store)
    assert (found.damages, found.differences) == ([], [])


def test_deleted_topic_loses_its_offsets_and_is_empty_when_created_again(open_store: OpenStore) -> None:
    broker = open_store()
    fill(broker, "old")
    fill(broker, "kept")
    old = broker.query("old", "k")[0]
    assert len(consumed(broker, "g", "old")) == 5
    assert broker.delete_topic("old") == 5
    for again in (False, True):
        if again:
            broker.close()
            shutil.rmtree(Path(broker.path) / "consumequeue")
            (Path(broker.path) / "txstore/snapshot").unlink()
            broker = open_store()
        assert broker.topics() == ["kept"]
        assert broker.queues("old") == []
        assert {row[0] for row in broker.store.consumer_offsets()} <= {"kept", "%RETRY%g"}
        for name in (old.message_id, old.offset_message_id):
            with pytest.raises(MessageNotFoundError):
                broker.message(name)
        with pytest.raises(InvalidNameError, match="there is no topic old"):
            broker.describe_topic("old")
        assert_well(broker)
    broker.create_topic("old", 2)
    assert (broker.describe_topic("old").messages, broker.queue_range("old", 0)) == (0, (5, 5))
    fill(broker, "old", 2)
    with pytest.raises(MessageNotFoundError):
        broker.message(old.offset_message_id)
    assert [message.queue_offset for message in broker.query("old", "k")] == [6, 5]
    assert consumed(broker, "g", "old") == [b"old 0", b"old 1"], "each once, and none from before"
    assert_well(broker)
    broker.close()
    shutil.rmtree(Path(broker.path) / "consumequeue")
    (Path(broker.path) / "txstore/snapshot").unlink()
    broker = open_store()
    assert bodies(broker, "old") == [b"old 0", b"old 1"]
    assert bodies(broker, "kept") == [f"kept {number}".encode() for number in range(5)]
    assert consumed(broker, "g", "old") == []


def test_topic_in_use_stays(broker: EmbeddedBroker) -> None:
    fill(broker, "orders")
    with broker.consumer("g", "orders"), pytest.raises(InUseError, match="consumer of group g here"):
        broker.delete_topic("orders")
    with broker.producer("shop") as producer:
        producer.send(Message("orders", b"x"))
        broker.create_topic("another")
        with pytest.raises(InUseError, match=r"producer of group shop here sends to orders\nhint: close it"):
            broker.delete_topic("orders")
    with broker.producer("shop") as producer:
        producer.send(Message("orders", b"later", delay_level=18))
        producer.send(Message("another", b"later", delay_level=18))
    with pytest.raises(InUseError, match="1 delayed messages for topic orders are not due yet"):
        broker.delete_topic("orders")
    fill(broker, "paid")
    half = broker.prepare(Message("paid", b"x"), 0, "order-service")
    with pytest.raises(InUseError, match=r"topic paid has pending transactions\nhint: `txstore tx list --topic paid`"):
        broker.delete_topic("paid")
    broker.end_transaction(half, LocalTransactionState.ROLLBACK)
    assert broker.delete_topic("paid") == 5
    assert (len(bodies(broker, "orders")), broker.topics()) == (6, ["another", "orders"])


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        ("nope", "there is no topic nope\nhint: the topics are %DLQ%g, orders"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "is a system topic"),
        ("%DLQ%g", "belongs to consumer group g\nhint: it is deleted with its group"),
    ],
)
def test_topic_that_cannot_be_deleted(broker: EmbeddedBroker, topic: str, what: str) -> None:
    fill(broker, "orders")
    with broker.consumer("g", "orders") as consumer:
        consumer.poll(1)[0].retry(-1)
    with pytest.raises(InvalidNameError, match=what):
        broker.delete_topic(topic)


def test_resumed_transaction_creates_its_topic_again(broker: EmbeddedBroker, scripted: type[Scripted]) -> None:
    fill(broker, "orders")
    sent = broker.prepare(Message("orders", b"parked"), 0, "order-service")
    broker.discard(sent)
    assert broker.delete_topic("orders") == 5
    broker.resume(sent.message_id)
    assert broker.topics() == ["orders"]
    broker.end_transaction(sent.message_id, LocalTransactionState.COMMIT)
    assert bodies(broker, "orders") == [b"parked"]


def test_retries_of_a_deleted_topic_are_not_delivered_when_it_is_created_again(broker: EmbeddedBroker) -> None:
    fill(broker, "orders", 1)
    fill(broker, "paid", 1)
    for topic in ("paid", "orders"):
        with broker.consumer("g", topic) as consumer:
            consumer.poll(1)[0].retry(2)
    with pytest.raises(InUseError, match="1 delayed"):
        broker.delete_topic("orders")
    eventually(lambda: not broker.store.delayed_messages("orders") + broker.store.delayed_messages("paid"))
    broker.delete_topic("orders")
    broker.create_topic("orders", 1)
    assert consumed(broker, "g", "orders") == []
    assert consumed(broker, "g", "paid") == [b"paid 0"], "another topic's retry in the same queue stays"


def test_group_is_deleted_with_its_offsets_and_dead_letters(open_store: OpenStore) -> None:
    broker = open_store()
    fill(broker, "orders")
    with broker.consumer("g", "orders") as consumer:
        first, *_ = consumer.poll(5)
        first.retry(-1)
        consumer.acknowledge()
        with pytest.raises(InUseError, match="has a consumer here"):
            broker.delete_group("g")
    consumed(broker, "g%other", "orders")
    with pytest.raises(InUseError, match=r"1 dead letters\nhint: .*force=True"):
        broker.delete_group("g")
    with pytest.raises(InvalidNameError, match="unknown consumer group nope"):
        broker.delete_group("nope")
    assert broker.delete_group("g", force=True) == 1
    broker.close()
    broker = open_store()
    assert broker.groups() == ["g%other"]
    assert not [row for row in broker.store.consumer_offsets() if row[0].startswith("%RETRY%g") and row[1] == "g"]
    assert [row[3] for row in broker.store.consumer_offsets() if row[:2] == ("orders", "g%other") and row[3]] == [5]
    assert [topic for topic in broker.topics() if topic.endswith("%g")] == []
    assert_well(broker)
    assert len(consumed(broker, "g", "orders")) == 5, "a new group of that name begins at the first message"
    assert broker.dead_letters("g") == []


def test_reader_deletes_nothing(open_store: OpenStore) -> None:
    writer = open_store()
    fill(writer, "orders")
    consumed(writer, "g", "orders")
    writer.flush()
    reader = open_store(read_only=True)
    with pytest.raises(ReadOnlyError):
        reader.delete_topic("orders")
    with pytest.raises(ReadOnlyError):
        reader.delete_group("g")
    assert reader.topics() == ["orders"]
    writer.delete_topic("orders")
    assert reader.topics() == []
