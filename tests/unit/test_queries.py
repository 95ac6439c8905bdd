"""Guards queries: a message is found by an id, a key or a time, and an error names what is there instead.

Results are compared with all that was sent.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import txstore
from tests.unit.conftest import OpenStore
from txstore import EmbeddedBroker, InvalidNameError, InvalidOptionError, Message, MessageNotFoundError, ReadOnlyError
from txstore._native import Store
from txstore.broker import EmbeddedBroker as RawBroker
from txstore.broker.queries import Queries
from txstore.config import BrokerConfig


def sent(broker: EmbeddedBroker, count: int) -> list[txstore.SentMessage]:
    producer = broker.producer("shop")
    return [
        producer.send(Message("orders", str(number).encode(), keys=[f"o-{number % 10}", f"all-{number}"]))
        for number in range(count)
    ]


def test_message_is_found_by_unique_id_and_by_offset_id(broker: EmbeddedBroker) -> None:
    results = sent(broker, 9)
    for number in (0, 4, 8):
        for name in (results[number].message_id, results[number].offset_message_id):
            assert broker.message(name).body == str(number).encode()
            assert broker.message(name, topic="orders").physical_offset == results[number].physical_offset
    broker.create_topic("other")
    with pytest.raises(MessageNotFoundError, match="in other"):
        broker.message(results[0].message_id, topic="other")
    with pytest.raises(MessageNotFoundError, match="in other"):
        broker.message(results[0].offset_message_id, topic="other")
    with pytest.raises(MessageNotFoundError, match="no message nonsense in any topic"):
        broker.message("nonsense")
    unmade = broker.append(Message("never-made", b"17"), 0)
    assert broker.message(unmade.message_id).body == b"17"


def test_messages_by_key_are_newest_first(broker: EmbeddedBroker) -> None:
    sent(broker, 40)
    assert [message.body for message in broker.query("orders", "o-3")] == [b"33", b"23", b"13", b"3"]
    assert [message.body for message in broker.query("orders", "o-3", 2)] == [b"33", b"23"]
    assert [message.body for message in broker.query("orders", "all-7")] == [b"7"]
    assert broker.query("orders", "o-77") == []


def test_messages_by_time_equal_those_of_a_full_read(open_store: OpenStore) -> None:
    broker = open_store()
    for _ in range(4):
        sent(broker, 30)
        broker.wait(2**62, 12)  # So that times differ.
    everything = sorted(
        (message for queue_id in range(4) for message in broker.read("orders", queue_id, 0, 1000)[0]),
        key=lambda message: message.physical_offset,
    )
    times = sorted({message.store_timestamp_ms for message in everything})
    assert len(times) >= 4
    for begin_ms in [times[0] - 1, *times[:: max(1, len(times) // 8)], times[-1] + 1]:
        for end_ms in [None, begin_ms, begin_ms + 5, times[-1] + 1]:
            begin = datetime.fromtimestamp(begin_ms / 1000, UTC)
            end = None if end_ms is None else datetime.fromtimestamp(end_ms / 1000, UTC)
            wanted = [
                message.message_id
                for message in everything
                if begin_ms <= message.store_timestamp_ms and (end_ms is None or message.store_timestamp_ms < end_ms)
            ]
            found = broker.query_by_time("orders", begin, end, max_messages=1000)
            assert [message.message_id for message in found] == wanted
            few = broker.query_by_time("orders", begin, end, max_messages=7)
            assert [message.message_id for message in few] == wanted[:7]


def test_topic_is_described(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 3)
    results = sent(broker, 7)
    with broker.consumer("shipping", "orders") as consumer:
        assert len(consumer.poll(32)) == 7
    found = broker.describe_topic("orders")
    assert (found.read_queues, found.write_queues, found.messages) == ((0, 1, 2), (0, 1, 2), 7)
    assert found.groups == ("shipping",)
    assert [(queue.queue_id, queue.first, queue.end) for queue in found.queues] == [(0, 0, 3), (1, 0, 2), (2, 0, 2)]
    newest = max(queue.newest for queue in found.queues if queue.newest is not None)
    assert newest == broker.message(results[-1].message_id).store_timestamp
    broker.create_topic("empty", 1)
    assert broker.describe_topic("empty").queues[0].newest is None


def test_group_is_created_and_described(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    broker.create_group("shipping")
    broker.create_group("shipping")
    assert broker.groups() == ["shipping"]
    assert broker.describe_group("shipping") == txstore.GroupDescription("shipping", (), (), 0, 0, 0)
    sent(broker, 8)
    with broker.consumer("shipping", "orders") as consumer:
        for message in consumer.poll(3):
            message.retry(-1)
        consumer.acknowledge()
        found = broker.describe_group("shipping")
    assert (found.topics, found.lag, found.dead_letters, found.members) == (("orders",), 5, 3, 1)
    assert sum(row.lag for row in found.queues) == 5
    with pytest.raises(InvalidNameError, match="unknown consumer group ship\nhint: the groups are shipping"):
        broker.describe_group("ship")
    with pytest.raises(InvalidNameError):
        broker.create_group("not a name")


def test_group_keeps_its_settings(open_store: OpenStore) -> None:
    with open_store() as broker:
        broker.create_group("shipping")
        usual = broker.group_settings("shipping")
        assert (usual.consume_message_orderly, usual.retry_max_times) == (False, 16)
        broker.create_group("shipping", retry_max_times=3)
        broker.create_group("shipping", consume_message_orderly=True)
        for wrong in (-1, 1_001):
            with pytest.raises(InvalidOptionError, match=f"retry_max_times must be between 0 and 1000, got {wrong}"):
                broker.create_group("shipping", retry_max_times=wrong)
        broker.create_group("shipping")
    with open_store(read_only=True) as broker:
        settings = broker.group_settings("shipping")
        assert (settings.consume_message_orderly, settings.retry_max_times) == (True, 3)
        assert broker.group_settings("other") == usual


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.query("nope", "key"),
        lambda broker: broker.query_by_time("nope", datetime.now(UTC)),
        lambda broker: broker.message("id", topic="nope"),
        lambda broker: broker.describe_topic("nope"),
    ],
)
def test_error_for_an_unknown_topic_lists_the_known_ones(
    broker: EmbeddedBroker, call: Callable[[EmbeddedBroker], object]
) -> None:
    broker.create_topic("orders")
    broker.create_topic("paid")
    with pytest.raises(InvalidNameError, match="no topic nope\nhint: the topics are orders, paid"):
        call(broker)
    assert broker.topics() == ["orders", "paid"], "a query creates no topic"


def test_invalid_times_and_numbers_are_refused(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    now = datetime.now(UTC)
    with pytest.raises(InvalidOptionError, match="must be a datetime with a time zone"):
        broker.query_by_time("orders", datetime.now())
    with pytest.raises(InvalidOptionError, match="before begin"):
        broker.query_by_time("orders", now, now - timedelta(seconds=1))
    for bad in (0, -1, True):
        with pytest.raises(InvalidOptionError, match="1 or more"):
            broker.query("orders", "key", bad)


def test_reader_sees_new_messages(broker: EmbeddedBroker) -> None:
    """Topics, messages and offsets of the writer, without opening again."""
    with txstore.open(broker.path, read_only=True) as reader:
        results = sent(broker, 6)
        with broker.consumer("shipping", "orders") as consumer:
            consumer.poll(32)
        broker.write_offsets()
        assert reader.message(results[2].message_id, topic="orders").body == b"2"
        found = reader.describe_topic("orders")
        assert (found.messages, found.groups) == (6, ("shipping",))
        assert (reader.topics(), reader.groups()) == (["orders"], ["shipping"])
        assert sum(row.lag for row in reader.lag("shipping")) == 0
        with pytest.raises(ReadOnlyError):
            reader.create_group("billing")


def test_without_housekeeping_no_background_job_runs(tmp_path: Path) -> None:
    """A store that the command line opens for writing delivers, checks and writes offsets only on request."""
    store = Store.open(str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20)
    with RawBroker(store, BrokerConfig(), keep_house=False) as broker:
        assert broker._parts.housekeeping.run_due() is None
    assert store.closed


def test_queries_keep_a_reference_to_current_topics(broker: EmbeddedBroker) -> None:
    """Queries ask for the topics each time, so a topic created later is known."""
    topics: list[str] = []
    queries = Queries(broker.store, lambda: topics)
    with pytest.raises(InvalidNameError, match="there are no topics"):
        queries.must_know_topic("orders")
    topics.append("orders")
    queries.must_know_topic("orders")
