"""Guards the administrative calls that a RocketMQ broker answers by its own requests: the same program operates the
store in this process, txstore's server and a real RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from tests.remoting_client.conftest import BROKER_SETTINGS, ON_ROCKETMQ, SOON
from tests.waiting import eventually
from txstore import ConsumeFromWhere, LocalTransactionState, Message, errors


@pytest.fixture(scope="module")
def timer_names(peer_process: peer.Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a real broker with its timer, without which RocketMQ 5.4 fails to delete a topic."""
    store = tmp_path_factory.mktemp("broker") / "store"
    config = peer.SMALL | peer.SHORT_DELAYS | {"timerWheelEnable": True}
    with peer_process.broker(store, config=config, settings=BROKER_SETTINGS | {"transactionCheckMax": 1}) as broker:
        yield broker.names


@pytest.fixture(scope="module", params=["embedded", "serve", ON_ROCKETMQ])
def any_broker(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    names = request.getfixturevalue("timer_names" if request.param == "rocketmq" else "serve_names")
    with txstore.connect(names, **SOON) as broker:
        yield broker


@pytest.fixture
def group(topic: str) -> str:
    return f"of-{topic}"


def sent(broker: Any, topic: str, count: int, **facts: Any) -> list[Any]:
    producer = broker.producer("p")
    found = [producer.send(Message(topic, b"%d" % number, **facts), queue_id=0) for number in range(count)]
    producer.close()
    return found


def lag_of(broker: Any, group: str, topic: str) -> list[tuple[int, int | None, int, int]]:
    rows = [row for row in broker.lag(group) if row.topic == topic]
    return [(row.queue_id, row.consumer_offset, row.end, row.lag) for row in rows]


def is_lag(broker: Any, group: str, topic: str, expected: list[tuple[int, int | None, int, int]]) -> bool:
    return lag_of(broker, group, topic) == expected


def test_topics_are_created_described_and_deleted(any_broker: Any, topic: str) -> None:
    any_broker.create_topic(topic, 2)
    any_broker.create_topic(topic)
    eventually(lambda: any_broker.has_topic(topic))
    assert not any(name.startswith(("RMQ_SYS", "SCHEDULE_TOPIC", "TBW102")) for name in any_broker.topics())
    sent(any_broker, topic, 3)
    eventually(lambda: any_broker.describe_topic(topic).messages == 3)
    found = any_broker.describe_topic(topic)
    assert (found.topic, found.read_queues, found.write_queues, found.groups) == (topic, (0, 1), (0, 1), ())
    assert [(one.queue_id, one.first, one.end, one.newest is None) for one in found.queues] == [
        (0, 0, 3, False),
        (1, 0, 0, True),
    ]
    assert txstore.QueueExtent(topic, 0, 0, 3) in any_broker.queues(topic)
    any_broker.create_topic(topic, 3)
    eventually(lambda: any_broker.describe_topic(topic).write_queues == (0, 1, 2))
    with pytest.raises(errors.InvalidOptionError):
        any_broker.create_topic(topic, 1)
    assert any_broker.delete_topic(topic) == 3
    eventually(lambda: not any_broker.has_topic(topic))
    with pytest.raises(errors.InvalidNameError, match=f"there is no topic {topic}"):
        any_broker.describe_topic(topic)


def test_groups_are_created_reset_and_deleted(any_broker: Any, topic: str, group: str) -> None:
    any_broker.create_topic(topic, 1)
    messages = sent(any_broker, topic, 4)
    any_broker.create_group(group)
    eventually(lambda: any_broker.has_group(group))
    with any_broker.consumer(group, topic) as consumer:
        taken = 0
        while taken < 3:
            taken += len(consumer.poll(3 - taken, timeout=20))
        consumer.acknowledge()
    eventually(lambda: lag_of(any_broker, group, topic) == [(0, 3, 4, 1)])
    described = any_broker.describe_group(group)
    assert (described.topics, described.lag, described.dead_letters) == ((topic,), 1, 0)
    assert any_broker.lag_by_group()[group]
    eventually(lambda: group in any_broker.describe_topic(topic).groups)
    eventually(lambda: any_broker.describe_group(group).members == 0)
    first = any_broker.message(messages[0].message_id, topic=topic).store_timestamp
    for to, offset in (
        (ConsumeFromWhere.FIRST, 0),
        (ConsumeFromWhere.LAST, 4),
        (first - timedelta(seconds=1), 0),
        (first + timedelta(days=1), 4),
    ):
        assert any_broker.reset_offsets(group, topic, to) == {0: offset}
        expected: list[tuple[int, int | None, int, int]] = [(0, offset, 4, 4 - offset)]
        eventually(partial(is_lag, any_broker, group, topic, expected))
    assert any_broker.reset_offsets(group, topic, 2, queue_id=0) == {0: 2}
    eventually(lambda: lag_of(any_broker, group, topic) == [(0, 2, 4, 2)])
    with pytest.raises(errors.InvalidOptionError, match="offset 5 is outside"):
        any_broker.reset_offsets(group, topic, 5, queue_id=0)
    with pytest.raises(errors.InvalidNameError, match="unknown consumer group nobody"):
        any_broker.lag("nobody")
    assert any_broker.delete_group(group) == 0
    eventually(lambda: not any_broker.has_group(group))


def test_messages_are_found(any_broker: Any, topic: str) -> None:
    any_broker.create_topic(topic, 1)
    messages = sent(any_broker, topic, 5, keys=[f"key-{topic}"], tags="paid")
    ids = [one.message_id for one in messages]

    def by_key() -> list[str]:
        return sorted(one.message_id for one in any_broker.query(topic, f"key-{topic}"))

    eventually(lambda: by_key() == sorted(ids))
    assert len(any_broker.query(topic, f"key-{topic}", 2)) == 2
    for name in (ids[1], messages[1].offset_message_id):
        found = any_broker.message(name)
        assert (found.topic, found.body, found.queue_offset, found.tags) == (topic, b"1", 1, "paid")
    begin = any_broker.message(ids[0], topic=topic).store_timestamp
    last = any_broker.message(ids[4], topic=topic).store_timestamp
    assert [one.message_id for one in any_broker.query_by_time(topic, begin)] == ids
    assert [one.message_id for one in any_broker.query_by_time(topic, begin, max_messages=2)] == ids[:2]
    assert any_broker.query_by_time(topic, last + timedelta(seconds=1)) == []
    read, following = any_broker.read(topic, 0, 1, 2)
    assert ([one.message_id for one in read], following) == (ids[1:3], 3)
    assert any_broker.read(topic, 0, 5) == ([], 5)
    assert any_broker.read(topic, 0, 0, tags=["other"])[0] == []
    with pytest.raises(errors.MessageNotFoundError):
        any_broker.message("7F" * 16, topic=topic)


def test_dead_letters_are_listed(any_broker: Any, topic: str, group: str) -> None:
    any_broker.create_topic(topic, 1)
    any_broker.create_group(group)
    sent(any_broker, topic, 1, keys=["k"])
    with any_broker.consumer(group, topic) as consumer:
        (message,) = consumer.poll(timeout=20)
        message.retry(-1)
        consumer.acknowledge()
    eventually(lambda: len(any_broker.dead_letters(group)) == 1)
    (letter,) = any_broker.dead_letters(group, limit=5)
    assert (letter.group, letter.topic, letter.body, letter.keys) == (group, topic, b"0", ("k",))
    with pytest.raises(errors.InUseError):
        any_broker.delete_group(group)
    eventually(lambda: any_broker.describe_group(group).members == 0)
    assert any_broker.delete_group(group, force=True) == 1


class Asked(txstore.TransactionListener):
    """Answers checks with UNKNOWN until it is told another answer."""

    answer = LocalTransactionState.UNKNOWN

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return self.answer


@pytest.mark.peer
def test_transaction_that_rocketmq_discarded_is_resumed(timer_names: str, topic: str) -> None:
    listener = Asked()
    with txstore.connect(timer_names, **SOON) as remote, remote.transaction_producer("shop", listener) as producer:
        remote.create_topic(topic, 1)
        name = str(producer.send_in_transaction(Message(topic, b"17")).transaction_id)

        def resumed() -> bool:
            try:
                return remote.resume(name) is None
            except errors.TransactionNotFoundError:
                return False

        eventually(resumed)
        listener.answer = LocalTransactionState.COMMIT
        eventually(lambda: [message.body for message in remote.read(topic, 0, 0)[0]] == [b"17"])
        with txstore.connect(timer_names, **SOON) as other, pytest.raises(errors.TransactionNotFoundError):
            other.end_transaction(name, LocalTransactionState.COMMIT)


@pytest.mark.peer
def test_call_that_rocketmq_has_no_request_for_is_reported(timer_names: str) -> None:
    with txstore.connect(timer_names) as remote:
        for call in (remote.transactions, remote.stat, remote.flush):
            with pytest.raises(errors.BrokerRefusedError, match="a RocketMQ broker cannot answer"):
                call()
        with pytest.raises(errors.TransactionNotFoundError):
            remote.resume("7F" * 16)
