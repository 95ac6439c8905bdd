"""Guards consumers of several topics: each reads all of its topics, shares them with its group, and finds new ones.

A list has the same tags for all topics, a dict has tags of each, and a pattern matches whole names of topics that exist
or are created later. Over a connection, brokers see all topics in one subscription of the group.
"""

import asyncio
import gc
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.waiting import eventually
from txstore import (
    ConnectOptions,
    ConsumeFromWhere,
    ConsumeResult,
    EmbeddedBroker,
    InUseError,
    InvalidNameError,
    InvalidOptionError,
    Message,
    MessageModel,
    MessageQueue,
)
from txstore.testing import FakeBroker

ORDERS = re.compile("orders-.*")
OFTEN: ConnectOptions = {"poll_name_server_interval": 0.2, "rebalance_interval": 0.2}


@pytest.fixture(params=["fake", "store", "remote", "shared"])
def any_broker(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """The same rules hold on all brokers."""
    if request.param == "fake":
        yield FakeBroker()
    elif request.param == "store":
        yield request.getfixturevalue("broker")
    elif request.param == "shared":
        with txstore.open(tmp_path / "s", shared=True) as shared:
            yield shared
    else:
        with (
            txstore.serve(tmp_path / "s", listen="127.0.0.1:0", name_server="127.0.0.1:0") as server,
            txstore.connect(server.name_server or "", **OFTEN) as remote,
        ):
            yield remote


def send(broker: Any, topic: str, *bodies: str, tags: str | None = None) -> None:
    producer = broker.producer("p")
    for body in bodies:
        producer.send(Message(topic, body.encode(), tags=tags), queue_id=0)


def taken(consumer: Any, count: int) -> set[tuple[str, str]]:
    """Polls until `count` different messages came: their topics and bodies."""
    found: set[tuple[str, str]] = set()

    def enough() -> bool:
        found.update((message.topic, message.body.decode()) for message in consumer.poll(9, 0.3))
        return len(found) >= count

    eventually(enough)
    consumer.acknowledge()
    return found


def test_a_list_of_topics_is_read_by_one_consumer(any_broker: Any) -> None:
    send(any_broker, "orders", "1", "2")
    send(any_broker, "payments", "3")
    send(any_broker, "other", "4")
    with any_broker.consumer("c", ["orders", "payments"]) as consumer:
        assert taken(consumer, 3) == {("orders", "1"), ("orders", "2"), ("payments", "3")}
        assert consumer.topics == ("orders", "payments")
        assert consumer.topic == "orders, payments"
        assert MessageQueue("payments", 0) in consumer.queues
        assert consumer.poll(9) == []
    rows = {(row.topic, row.queue_id): row.consumer_offset for row in any_broker.lag("c")}
    assert (rows["orders", 0], rows["payments", 0]) == (2, 1)
    assert "other" not in {topic for topic, _ in rows}
    with any_broker.consumer("c", {"orders": None, "payments": None}) as consumer:
        send(any_broker, "payments", "5")
        assert taken(consumer, 1) == {("payments", "5")}, "the group continues where it was"


def test_an_exception_acknowledges_no_topic(any_broker: Any) -> None:
    send(any_broker, "orders", "1")
    send(any_broker, "payments", "2")
    with pytest.raises(KeyError), any_broker.consumer("c", ["orders", "payments"]) as consumer:  # noqa: PT012
        for _ in consumer:
            raise KeyError("shipping")
    with any_broker.consumer("c", ["orders", "payments"]) as consumer:
        assert taken(consumer, 2) == {("orders", "1"), ("payments", "2")}


def test_tags_hold_for_all_topics_of_a_list_or_for_each_of_a_dict(any_broker: Any) -> None:
    for topic in ("orders", "payments"):
        send(any_broker, topic, "paid", tags="paid")
        send(any_broker, topic, "open", tags="open")
    with any_broker.consumer("a", ["orders", "payments"], "paid") as consumer:
        assert taken(consumer, 2) == {("orders", "paid"), ("payments", "paid")}
        assert consumer.tags == ("paid",)
    with any_broker.consumer("b", {"orders": "open || late", "payments": None}) as consumer:
        assert taken(consumer, 3) == {("orders", "open"), ("payments", "paid"), ("payments", "open")}
        assert consumer.tags is None


def test_a_pattern_finds_topics_that_are_created_later(any_broker: Any) -> None:
    send(any_broker, "orders-eu", "1")
    send(any_broker, "old-orders-eu", "2")
    with any_broker.consumer("c", ORDERS) as consumer:
        assert taken(consumer, 1) == {("orders-eu", "1")}
        assert consumer.topic == "'orders-.*'"
        assert consumer.topics == ("orders-eu",)
        send(any_broker, "orders-us", "3", "4")
        send(any_broker, "more-orders-us", "5")
        assert taken(consumer, 2) == {("orders-us", "3"), ("orders-us", "4")}
        assert consumer.topics == ("orders-eu", "orders-us")
    with any_broker.consumer("c", ORDERS) as consumer:
        send(any_broker, "orders-us", "6")
        assert taken(consumer, 1) == {("orders-us", "6")}


def test_a_pattern_without_a_topic_waits_for_one(any_broker: Any) -> None:
    with any_broker.consumer("c", ORDERS) as consumer:
        assert consumer.poll() == []
        assert (consumer.topics, consumer.number) == ((), 0)
        send(any_broker, "orders-eu", "1")
        assert taken(consumer, 1) == {("orders-eu", "1")}


def test_a_pattern_matches_no_topic_of_the_system(any_broker: Any) -> None:
    send(any_broker, "orders-eu", "1")
    with any_broker.consumer("c", "orders-eu") as consumer:
        for message in consumer:
            message.nack(-1)
            break
    send(any_broker, "orders-eu", "2")
    with any_broker.consumer("all", re.compile(".*")) as consumer:
        assert taken(consumer, 2) == {("orders-eu", "1"), ("orders-eu", "2")}
        assert consumer.topics == ("orders-eu",)


def test_the_start_holds_for_topics_that_exist(any_broker: Any) -> None:
    send(any_broker, "orders-eu", "1")
    with any_broker.consumer("c", ORDERS, start=ConsumeFromWhere.LAST) as consumer:
        send(any_broker, "orders-eu", "2")
        send(any_broker, "orders-us", "3")
        assert taken(consumer, 2) == {("orders-eu", "2"), ("orders-us", "3")}, "a later one is read from the beginning"


def test_retries_and_dead_letters_of_several_topics(any_broker: Any) -> None:
    send(any_broker, "orders", "1")
    send(any_broker, "payments", "2")
    with any_broker.consumer("c", ["orders", "payments"]) as consumer:
        first: set[tuple[str, str]] = set()

        def nacked() -> bool:
            for message in consumer.poll(9, 0.3):
                first.add((message.topic, message.body.decode()))
                message.nack(1 if message.topic == "orders" else -1)
            return len(first) == 2

        eventually(nacked)
        assert taken(consumer, 1) == {("orders", "1")}, "each retry is delivered once, under its own topic"
        assert consumer.poll(9, 0.3) == []
    assert [(letter.topic, letter.body) for letter in any_broker.dead_letters("c")] == [("payments", b"2")]


def test_a_handler_gets_the_messages_of_all_topics(any_broker: Any) -> None:
    send(any_broker, "orders", "1", "2")
    send(any_broker, "payments", "3")
    seen: list[str] = []

    def handle(message: Any) -> ConsumeResult | None:
        seen.append(message.body.decode())
        if len(seen) == 3:
            consumer.close()
        return None

    for orderly in (False, True):
        with any_broker.consumer(f"c{orderly}", ["orders", "payments"]) as consumer:
            consumer.run(handle, orderly=orderly)
        assert sorted(seen) == ["1", "2", "3"]
        seen.clear()


def test_members_share_the_queues_of_each_topic(any_broker: Any) -> None:
    for topic in ("orders", "payments"):
        send(any_broker, topic, "x")
    topics = ["orders", "payments"]
    with any_broker.consumer("c", topics) as first, any_broker.consumer("c", topics) as second:

        def shared() -> bool:
            first.poll(9, 0.05)
            second.poll(9, 0.05)
            return len(first.queues) == len(second.queues) == 4 and not set(first.queues) & set(second.queues)

        eventually(shared)
        assert {queue.topic for queue in first.queues} == {"orders", "payments"}
        first.close()
        eventually(lambda: (second.poll(9, 0.05), len(second.queues) == 8)[1])


def test_broadcasting_reads_all_topics(any_broker: Any) -> None:
    send(any_broker, "orders", "1")
    send(any_broker, "payments", "2")
    for name in ("a", "b"):
        model = MessageModel.BROADCASTING
        with any_broker.consumer("c", ["orders", "payments"], message_model=model, instance_name=name) as consumer:
            assert taken(consumer, 2) == {("orders", "1"), ("payments", "2")}


def test_a_reset_of_one_topic_leaves_the_others(any_broker: Any) -> None:
    send(any_broker, "orders", "1")
    send(any_broker, "payments", "2")
    with any_broker.consumer("c", ["orders", "payments"]) as consumer:
        taken(consumer, 2)
        any_broker.reset_offsets("c", "orders", ConsumeFromWhere.FIRST)
        assert taken(consumer, 1) == {("orders", "1")}
        assert consumer.poll(9, 0.1) == []


def test_a_consumer_of_several_topics_is_one_member(broker: EmbeddedBroker) -> None:
    for topic in ("orders", "payments"):
        broker.create_topic(topic)
    with broker.consumer("c", ["orders", "payments"]), broker.consumer("c", ["orders", "payments"]):
        described = broker.describe_group("c")
    assert (described.members, described.topics) == (2, ("orders", "payments"))


def test_all_topics_are_in_use_and_released(broker: EmbeddedBroker) -> None:
    for topic in ("orders", "payments"):
        broker.create_topic(topic)
    consumer = broker.consumer("c", ["orders", "payments"])
    with pytest.raises(InUseError):
        broker.delete_topic("payments")
    consumer.close()
    broker.delete_topic("payments")
    reference = weakref.ref(broker.consumer("c", ["orders", "payments"]))
    gc.disable()
    try:
        assert reference() is None, "it is freed at once"
    finally:
        gc.enable()
    assert broker.describe_group("c").members == 0


def test_a_consumer_that_cannot_be_created_leaves_no_member(any_broker: Any) -> None:
    with any_broker.consumer("c", "payments", "paid"):
        with pytest.raises(InvalidOptionError, match="another consumer of topic payments has the tags") as caught:
            any_broker.consumer("c", ["orders", "payments"])
        with any_broker.consumer("c", "orders", "other"):
            assert caught.tb is not None, "it keeps the consumer, which is still no member"


@pytest.mark.parametrize("topics", [[], {}, (), [17], {1: None}, 17, None, b"orders", re.compile(b"orders")])
def test_what_is_not_a_topic_is_refused(broker: EmbeddedBroker, topics: Any) -> None:
    with pytest.raises(InvalidOptionError, match="topic must be the name of a topic, several names, or a compiled"):
        broker.consumer("c", topics)


def test_wrong_names_and_tags_twice_are_refused(broker: EmbeddedBroker) -> None:
    for wrong in (["orders", "two words"], ["TBW102"], {"": None}):
        with pytest.raises(InvalidNameError):
            broker.consumer("c", wrong)
    with pytest.raises(InvalidOptionError, match=r"each topic of .* has its own tags, got tags='open', too"):
        broker.consumer("c", {"orders": "paid"}, "open")


def test_brokers_see_one_subscription_with_all_topics(tmp_path: Any) -> None:
    with (
        txstore.serve(tmp_path / "s", listen="127.0.0.1:0", name_server="127.0.0.1:0") as server,
        txstore.connect(server.name_server or "", **OFTEN) as remote,
        remote.consumer("c", {"orders": "paid || late", "payments": None}),
    ):
        (group,) = (group for name, group in server._clients._groups.items() if name == "c")
        (member,) = group.members.values()
        said = {topic: facts["subString"] for topic, facts in member.subscriptions.items()}
        assert said == {"orders": "paid || late", "payments": "*", "%RETRY%c": "*"}


async def _use(broker: Any) -> None:
    async with broker:
        producer = broker.producer("p")
        await producer.send(Message("orders-eu", b"1"))
        async with broker.consumer("c", ORDERS) as consumer:
            (message,) = await consumer.poll(9, 10)
            assert (message.topic, consumer.topics) == ("orders-eu", ("orders-eu",))
            await producer.send(Message("orders-us", b"2"))
            async for message in consumer:
                assert message.topic == "orders-us"
                break
            assert {queue.topic for queue in consumer.queues} == {"orders-eu", "orders-us"}


@pytest.mark.parametrize("kind", ["embedded", "shared", "remote"])
def test_on_asyncio(kind: str, tmp_path: Any) -> None:
    if kind == "embedded":
        asyncio.run(_use(txstore.aio.open(tmp_path / "s")))
    elif kind == "shared":
        asyncio.run(_use(txstore.aio.open(tmp_path / "s", shared=True)))
    else:
        with txstore.serve(tmp_path / "s", listen="127.0.0.1:0", name_server="127.0.0.1:0") as server:
            asyncio.run(_use(txstore.aio.connect(server.name_server or "", **OFTEN)))


def test_processes_that_share_a_store_find_new_topics(tmp_path: Any) -> None:
    with txstore.open(tmp_path / "s", shared=True) as one, txstore.open(tmp_path / "s", shared=True) as other:
        seen: set[str] = set()
        lock = threading.Lock()
        with one.consumer("c", ORDERS) as first, other.consumer("c", ORDERS) as second:

            def all_came() -> bool:
                for consumer in (first, second):
                    with lock:
                        seen.update(message.body.decode() for message in consumer.poll(9, 0.05))
                return seen == {str(number) for number in range(8)}

            producer = other.producer("p")
            for number in range(8):
                producer.send(Message("orders-eu", str(number).encode()), queue_id=number % 4)
            eventually(all_came)
            eventually(lambda: all_came() and len(first.queues) == len(second.queues) == 2)
