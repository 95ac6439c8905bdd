"""Guards a program for the embedded store that runs against a real RocketMQ with one line changed.

It sends, begins transactions and ends them, answers checks, also for a process that crashed, and shares groups with
Java.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import txstore
from tests.peer import rocketmq as peer
from tests.remoting_client.conftest import SOON
from tests.remoting_client.helpers import COMMIT, ROLLBACK, UNKNOWN, Answers, take
from tests.waiting import eventually
from txstore import ConsumeFromWhere, ConsumeResult, Message
from txstore.client.broker import RemoteBroker


def test_sent_message_is_received_unchanged(remote: RemoteBroker, topic: str) -> None:
    producer = remote.producer("p")
    message = Message(topic, b"17", tags="paid", keys=["a", "b"], properties={"who": "Wert ü"}, flag=7)
    sent = producer.send(message)
    assert (sent.topic, sent.queue_offset, sent.transaction_id) == (topic, 0, None)
    with remote.consumer(f"c-{topic}", topic) as consumer:
        (found,) = take(consumer, 1)
        assert (found.message_id, found.offset_message_id) == (sent.message_id, sent.offset_message_id)
        assert (found.topic, found.body, found.tags, found.keys, found.flag) == (topic, b"17", "paid", ("a", "b"), 7)
        assert found.properties["who"] == "Wert ü"
        assert found.transaction_id is None


def test_batch_is_one_request_in_one_queue(remote: RemoteBroker, topic: str) -> None:
    producer = remote.producer("p")
    producer.send(Message(topic, b"first"))
    sent = producer.send_batch([Message(topic, str(number).encode(), tags="t") for number in range(5)])
    assert len({one.queue_id for one in sent}) == 1
    assert [one.queue_offset - sent[0].queue_offset for one in sent] == list(range(5))
    with remote.consumer(f"c-{topic}", topic) as consumer:
        found = {message.message_id: message.body for message in take(consumer, 6)}
    assert [found[one.message_id] for one in sent] == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(txstore.InvalidMessageError, match="must go to one queue"):
        producer.send_batch([Message(topic, b"x"), Message(f"{topic}-other", b"y")])


def test_transaction_is_visible_when_its_commit_returns_and_never_after_a_rollback(
    remote: RemoteBroker, topic: str
) -> None:
    with remote.consumer(f"c-{topic}", topic) as consumer:
        producer = remote.transaction_producer(f"g-{topic}", Answers(COMMIT))
        sent = producer.send_in_transaction(Message(topic, b"commit"))
        assert (sent.error, sent.local_transaction_state) == (None, COMMIT)
        (found,) = take(consumer, 1)
        assert (found.body, found.transaction_id) == (b"commit", sent.transaction_id)
        with producer.transaction(Message(topic, b"rolled back")) as tx:
            tx.rollback()
            tx.rollback()
            with pytest.raises(txstore.AlreadyEndedError):
                tx.commit()
        with producer.transaction(Message(topic, b"block")) as tx:
            pass
        assert remote.end_transaction(tx.send_result, COMMIT).already
        with pytest.raises(txstore.AlreadyEndedError) as raised:
            remote.end_transaction(tx.transaction_id, ROLLBACK)
        assert raised.value.outcome == "committed"
        assert [message.body for message in take(consumer, 1)] == [b"block"]
        assert consumer.poll(9, 1.0) == []


def test_check_is_answered_over_the_connection(remote: RemoteBroker, topic: str) -> None:
    listener = Answers(UNKNOWN, check=COMMIT)
    message = Message(topic, b"17", tags="t", keys="k", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
    sent = remote.transaction_producer(f"g-{topic}", listener).send_in_transaction(message)
    with remote.consumer(f"c-{topic}", topic) as consumer:
        assert [found.body for found in take(consumer, 1)] == [b"17"]
    (asked, *_) = listener.checked
    assert (asked.transaction_id, asked.topic, asked.tags, asked.keys) == (sent.transaction_id, topic, "t", ("k",))
    assert asked.body == b"17"


def test_running_transaction_is_not_checked(remote: RemoteBroker, topic: str) -> None:
    listener = Answers(UNKNOWN, check=ROLLBACK)
    producer = remote.transaction_producer(f"g-{topic}", listener)
    with producer.transaction(Message(topic, b"long")):
        # The broker asks about another one, which is younger, and then asks again.
        witness = Answers(UNKNOWN)
        short = Message(topic, b"short", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
        remote.transaction_producer(f"w-{topic}", witness).send_in_transaction(short)
        eventually(lambda: len(witness.checked) >= 2)
    assert listener.checked == []
    with remote.consumer(f"c-{topic}", topic) as consumer:
        assert [found.body for found in take(consumer, 1)] == [b"long"]


@pytest.mark.peer
def test_late_end_is_refused_and_its_check_settles_it(rocketmq_names: str, topic: str) -> None:
    """RocketMQ's rule for messages with an immunity time of their own; its clients are not told."""
    listener = Answers(UNKNOWN, check=COMMIT)
    with txstore.connect(rocketmq_names) as remote:
        producer = remote.transaction_producer(f"g-{topic}", listener)
        with producer.transaction(Message(topic, b"17", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})) as tx:
            time.sleep(1.2)
        assert "LateEndError" in str(tx.error)
        with remote.consumer(f"c-{topic}", topic) as consumer:
            assert [found.body for found in take(consumer, 1)] == [b"17"]


DIES = """
import sys, time, txstore
from txstore import LocalTransactionState, Message
names, group, topic = sys.argv[1:]
broker = txstore.connect(names, send_msg_timeout=60, request_timeout=60)
producer = broker.transaction_producer(group, check_listener=lambda message: LocalTransactionState.ROLLBACK)
with producer.transaction(Message(topic, b"orphan", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})) as tx:
    print(tx.transaction_id, flush=True)
    time.sleep(60)
"""


def test_another_producer_of_the_group_answers_for_a_crashed_process(
    remote: RemoteBroker, names: str, topic: str
) -> None:
    group = f"g-{topic}"
    child = subprocess.Popen([sys.executable, "-c", DIES, names, group, topic], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        transaction_id = child.stdout.readline().strip()
        child.send_signal(signal.SIGKILL)
    listener = Answers(UNKNOWN, check=COMMIT)
    remote.transaction_producer(group, listener)  # It sends nothing, but the broker knows it.
    with remote.consumer(f"c-{topic}", topic) as consumer:
        assert [found.body for found in take(consumer, 1, 30)] == [b"orphan"]
    assert {asked.transaction_id for asked in listener.checked} == {transaction_id}


def test_offsets_are_the_brokers_and_tags_filter(remote: RemoteBroker, names: str, topic: str) -> None:
    producer = remote.producer("p")
    for number, tag in enumerate(["paid", "open", "refunded", None, "open"] * 4):
        producer.send(Message(topic, str(number).encode(), tags=tag), queue_id=0)
    with remote.consumer(f"c-{topic}", topic, tags="paid || refunded") as consumer:
        first = take(consumer, 3)
        assert [int(message.body) for message in first] == sorted(int(message.body) for message in first)
    with (
        txstore.connect(names, **SOON) as other,
        other.consumer(f"c-{topic}", topic, tags="paid || refunded") as consumer,
    ):
        rest = take(consumer, 8 - len(first))
        assert sorted(int(message.body) for message in [*first, *rest]) == [0, 2, 5, 7, 10, 12, 15, 17]
        assert consumer.poll(9, 0.5) == []


def test_start_at_the_last_skips_earlier_messages(remote: RemoteBroker, topic: str) -> None:
    producer = remote.producer("p")
    for _ in range(8):
        producer.send(Message(topic, b"old"))
    with remote.consumer(f"c-{topic}", topic, start=ConsumeFromWhere.LAST) as consumer:
        assert consumer.poll(9, 0.3) == []
        producer.send(Message(topic, b"new"))
        assert [message.body for message in take(consumer, 1)] == [b"new"]


def test_message_is_retried_and_becomes_a_dead_letter(remote: RemoteBroker, topic: str) -> None:
    remote.producer("p").send(Message(topic, b"17", keys="k"))
    group = f"c-{topic}"
    with remote.consumer(group, topic, max_reconsume_times=1) as consumer:
        times = []
        for _ in range(2):
            (message,) = take(consumer, 1)
            assert (message.topic, message.body) == (topic, b"17")
            times.append(message.reconsume_times)
            message.retry(delay_level=1)
        consumer.acknowledge()
        assert times == [0, 1]
    with remote.consumer(f"dead-{topic}", f"%DLQ%{group}") as consumer:
        (message,) = take(consumer, 1)
        assert message.body == b"17"


def test_clients_share_a_topic_and_rebalance(remote: RemoteBroker, names: str, topic: str) -> None:
    producer = remote.producer("p")
    for number in range(40):
        producer.send(Message(topic, str(number).encode()), queue_id=number % 4)
    group = f"c-{topic}"
    mine: list[Any] = []
    theirs: list[Any] = []
    with remote.consumer(group, topic) as first:
        mine += take(first, 10)
        with txstore.connect(names, **SOON) as other, other.consumer(group, topic) as second:

            def both_read() -> int:
                before = len(mine) + len(theirs)
                mine.extend(first.poll(4, 0.1))
                theirs.extend(second.poll(4, 0.1))
                return len(mine) + len(theirs) - before

            def shared() -> bool:
                return both_read() == 0 and len(first.queue_ids) == len(second.queue_ids) == 2

            eventually(shared)
            handed_over = second.queue_ids
            assert sorted(first.queue_ids + handed_over) == [0, 1, 2, 3]
        assert {int(message.body) for message in mine + theirs} == set(range(40))
        # The new owner of a queue does not wait for the old one: messages not yet acknowledged to the broker come to
        # both.
        assert {message.queue_id for message in theirs} <= set(handed_over)
        assert len({message.body for message in mine}) == len(mine)
        assert len({message.body for message in theirs}) == len(theirs)

        def whole() -> bool:
            assert not first.poll(4, 0.1), "a closing consumer reports its offsets to the broker first"
            return first.queue_ids == (0, 1, 2, 3)

        eventually(whole)
        assert not first.poll(4, 0.5)


@pytest.mark.peer
def test_group_is_shared_with_a_client_in_java(
    remote: RemoteBroker, names: str, peer_process: peer.Peer, topic: str
) -> None:
    producer = remote.producer("p")
    producer.send(Message(topic, b"warm"), queue_id=0)
    group = f"c-{topic}"
    with remote.consumer(group, topic) as ours:
        take(ours, 1)
        theirs = peer_process.begin(
            "consume",
            names=names,
            group=group,
            topics={topic: "*"},
            idle_ms=3000,
            at_least=20,
            timeout_ms=25000,
        )
        eventually(lambda: not ours.poll(1, 0.1) and len(ours.queue_ids) == 2, 20)
        for number in range(40):
            producer.send(Message(topic, str(number).encode()), queue_id=number % 4)
        mine = take(ours, 20)
        received = theirs.result(40)
    assert len(received) == 20
    bodies = [int(message.body) for message in mine]
    assert len(set(bodies)) == 20
    assert {row["queue_id"] for row in received} | {message.queue_id for message in mine} == {0, 1, 2, 3}


def test_orderly_handler_gets_a_queue_in_order_after_a_failure(remote: RemoteBroker, topic: str) -> None:
    producer = remote.producer("p")
    for number in range(12):
        producer.send(Message(topic, str(number).encode()), queue_id=number % 2)
    seen: list[int] = []
    failed = threading.Event()

    def handle(message: Any) -> ConsumeResult | None:
        if message.body == b"4" and not failed.is_set():
            failed.set()
            return ConsumeResult.RECONSUME_LATER
        seen.append(int(message.body))
        return None

    with remote.consumer(f"c-{topic}", topic) as consumer:
        consumer.run(handle, threads=4, orderly=True, timeout=5)
    assert [number for number in seen if number % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert [number for number in seen if number % 2] == [1, 3, 5, 7, 9, 11]


def test_consumer_continues_from_offsets_that_an_operator_resets(names: str, topic: str) -> None:
    # RocketMQ 5 reports the reset with the answer to the next pull, which it may hold so long.
    with txstore.connect(names, **SOON, broker_suspend_max_time=1) as remote:
        check_reset(remote, topic)


def check_reset(remote: RemoteBroker, topic: str) -> None:
    producer = remote.producer("p")
    for number in range(8):
        producer.send(Message(topic, str(number).encode()))
    group = f"c-{topic}"
    with remote.consumer(group, topic) as consumer:
        take(consumer, 8)
        consumer.acknowledge()
        remote.write_offsets()
        (broker,) = remote._client.brokers()
        fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        reset: Any = 222  # The request that mqadmin's resetOffsetByTime sends to a broker.
        remote._run(remote._client.demand(broker, reset, fields, "a reset"))
        assert sorted(int(message.body) for message in take(consumer, 8)) == list(range(8))
        consumer.acknowledge()
        remote.write_offsets()
        assert sum(remote.consumer_offset(topic, group, number) or 0 for number in range(4)) == 8


@pytest.mark.peer
def test_operator_sees_what_a_consumer_does(
    remote: RemoteBroker, names: str, peer_process: peer.Peer, topic: str
) -> None:
    """mqadmin asks the broker, which asks this client."""
    producer, group = remote.producer("p"), f"c-{topic}"
    for number in range(6):
        producer.send(Message(topic, str(number).encode(), tags="paid"), queue_id=number % 2)
    with remote.consumer(group, topic, tags="paid") as consumer:
        take(consumer, 6)
        consumer.acknowledge()
        arguments = ["consumerStatus", "-g", group, "-i", remote._client.client_id, "-n", names]
        told = str(peer_process.call("remote.admin", names=names, arguments=arguments))
        rows = peer_process.call("status", names=names, group=group, topic=topic)
    assert "CONSUME_PASSIVELY" in told
    lines = [line.split() for line in told.splitlines()]
    assert [line[-1] for line in lines if line[2:3] == [topic]] == ["paid"]
    assert [line[3] for line in lines if line[:1] == [topic] and line[2] in "01" and len(line) == 4] == ["3", "3"]
    assert sorted(offset for _, _, offset in rows if offset > 0) == [3, 3]
    assert {client for client, _, _ in rows} == {remote._client.client_id}


def test_call_that_needs_the_store_names_the_alternative(remote: RemoteBroker) -> None:
    with pytest.raises(txstore.EmbeddedOnlyError, match=r"txstore\.open"):
        remote.store  # noqa: B018  # Reading the attribute is the call.
    assert not hasattr(remote, "path")


def test_system_topic_is_refused(remote: RemoteBroker) -> None:
    with pytest.raises(txstore.InvalidNameError):
        remote.consumer("c", "SCHEDULE_TOPIC_XXXX")
