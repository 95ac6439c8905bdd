"""Guards consumers of several topics over a connection, to a real RocketMQ and to txstore's own server.

A list of topics, a dict with tags of each, a pattern; retries, and queues shared by two clients.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

import txstore
from tests.remoting_client.conftest import ON_ROCKETMQ, SOON
from tests.remoting_client.helpers import take
from tests.waiting import eventually
from txstore import Consumer, Message, RemoteBroker


def send(remote: RemoteBroker, topic: str, *bodies: str, tags: str | None = None) -> None:
    producer = remote.producer("p")
    for body in bodies:
        producer.send(Message(topic, body.encode(), tags=tags))


def taken(consumer: Consumer, count: int) -> Counter[tuple[str, str]]:
    """The topics and bodies of that many messages."""
    return Counter((message.topic, message.body.decode()) for message in take(consumer, count))


def test_a_list_and_a_dict_of_topics_are_read(remote: RemoteBroker, topic: str) -> None:
    orders, bills = f"{topic}-orders", f"{topic}-bills"
    for name in (orders, bills):
        send(remote, name, "1", "2", tags="paid")
        send(remote, name, "3", tags="late")
    with remote.consumer(f"c-{topic}", [orders, bills]) as consumer:
        assert taken(consumer, 6) == Counter((name, body) for name in (orders, bills) for body in "123")
    with remote.consumer(f"d-{topic}", {orders: "paid", bills: None}) as consumer:
        wanted = {(orders, "1"), (orders, "2"), (bills, "1"), (bills, "2"), (bills, "3")}
        assert taken(consumer, 5) == Counter(wanted)
        assert consumer.poll(9, 1.0) == []


def test_a_pattern_finds_topics_that_are_created_later(remote: RemoteBroker, topic: str) -> None:
    send(remote, f"{topic}-eu", "1")
    send(remote, f"other-{topic}-eu", "x")
    with remote.consumer(f"c-{topic}", re.compile(f"{topic}-.*")) as consumer:
        assert taken(consumer, 1) == Counter([(f"{topic}-eu", "1")])
        send(remote, f"{topic}-us", "2")
        assert taken(consumer, 1) == Counter([(f"{topic}-us", "2")])
        assert consumer.topics == (f"{topic}-eu", f"{topic}-us")
    with remote.consumer(f"c-{topic}", re.compile(f"{topic}-.*")) as consumer:
        send(remote, f"{topic}-eu", "3")
        assert taken(consumer, 1) == Counter([(f"{topic}-eu", "3")]), "what was read is acknowledged in each topic"


def test_messages_of_each_topic_are_retried(remote: RemoteBroker, topic: str) -> None:
    orders, bills = f"{topic}-orders", f"{topic}-bills"
    send(remote, orders, "1")
    send(remote, bills, "2")
    tries: Counter[tuple[str, str]] = Counter()
    with remote.consumer(f"c-{topic}", [orders, bills]) as consumer:

        def came_twice() -> bool:
            for message in consumer.poll(9, 0.5):
                tries[message.topic, message.body.decode()] += 1
                if message.reconsume_times == 0:
                    message.nack(delay_level=1)
            return tries == {(orders, "1"): 2, (bills, "2"): 2}

        eventually(came_twice)


@pytest.mark.parametrize("kind", [ON_ROCKETMQ, "serve"])
def test_clients_share_the_queues_of_each_topic(kind: str, request: pytest.FixtureRequest, topic: str) -> None:
    names: str = request.getfixturevalue(f"{kind}_names")
    topics = [f"{topic}-orders", f"{topic}-bills"]
    with txstore.connect(names, **SOON) as one, txstore.connect(names, **SOON) as other:
        for name in topics:
            send(one, name, *"12345678")
        found: Counter[tuple[str, str]] = Counter()
        with one.consumer(f"c-{topic}", topics) as first, other.consumer(f"c-{topic}", topics) as second:

            def shared() -> bool:
                for consumer in (first, second):
                    found.update((message.topic, message.body.decode()) for message in consumer.poll(9, 0.1))
                queues = [{(queue.topic, queue.queue_id) for queue in consumer.queues} for consumer in (first, second)]
                halves = [Counter(name for name, _ in mine) for mine in queues]
                return halves == [dict.fromkeys(topics, 2)] * 2 and not queues[0] & queues[1]

            eventually(lambda: shared() and found.keys() == {(name, body) for name in topics for body in "12345678"})
