"""Guards that producers and consumers behave alike on the embedded store, on txstore's server and on a real
RocketMQ.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

import txstore
from tests.remoting_client.helpers import COMMIT, ROLLBACK, UNKNOWN, Answers, take
from tests.waiting import eventually
from txstore import ConsumeFromWhere, ConsumeResult, LocalTransactionState, Message, MessageModel, MessageQueue


def fill(broker: Any, topic: str, count: int, queues: int = 1, **options: Any) -> None:
    producer = broker.producer("p")
    for number in range(count):
        producer.send(Message(topic, str(number).encode(), **options), queue_id=number % queues)


def numbers(messages: Any) -> list[int]:
    return [int(message.body) for message in messages]


# Producers


def test_queues_take_turns(any_broker: Any, topic: str) -> None:
    any_broker.create_topic(topic, 4)  # When a first message creates it, its route changes, and the turns begin again.
    producer = any_broker.producer("p")
    assert Counter(producer.send(Message(topic, b"x")).queue_id for _ in range(8)) == dict.fromkeys(range(4), 2)


def test_message_group_stays_in_one_queue_and_in_order(any_broker: Any, topic: str) -> None:
    producer = any_broker.producer("p")
    queues = {producer.send(Message(topic, str(number).encode(), message_group="o-17")).queue_id for number in range(6)}
    assert len(queues) == 1
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert numbers(take(consumer, 6)) == list(range(6))


def test_selector_chooses_and_gets_the_argument(any_broker: Any, topic: str) -> None:
    producer = any_broker.producer("p")

    def by_order(queues: Any, message: Message, arg: Any) -> MessageQueue:
        chosen = queues[arg % len(queues)]
        assert isinstance(chosen, MessageQueue)
        return chosen

    assert producer.send(Message(topic, b"x"), selector=by_order, arg=6).queue_id == 2
    with pytest.raises(txstore.InvalidNameError, match="its queues are 0, 1, 2, 3"):
        producer.send(Message(topic, b"x"), queue_id=4)


def test_batch_keeps_its_order_in_one_queue(any_broker: Any, topic: str) -> None:
    sent = any_broker.producer("p").send_batch([Message(topic, str(number).encode()) for number in range(10)])
    assert len({one.queue_id for one in sent}) == 1
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        found = take(consumer, 10)
    assert numbers(found) == list(range(10))
    assert [message.message_id for message in found] == [one.message_id for one in sent]


def test_closed_producer_is_reported(any_broker: Any, topic: str) -> None:
    producer = any_broker.producer("p")
    producer.send(Message(topic, b"x"))
    producer.close()
    producer.close()
    with pytest.raises(txstore.StoreClosedError):
        producer.send(Message(topic, b"x"))


def test_delayed_message_comes_later(any_broker: Any, topic: str) -> None:
    sent = time.monotonic()
    any_broker.producer("p").send(Message(topic, b"later", delay_level=1))
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert [message.body for message in take(consumer, 1)] == [b"later"]
    assert time.monotonic() - sent > 0.8


def test_large_body_arrives_completely(any_broker: Any, topic: str) -> None:
    body = bytes(range(256)) * 250
    any_broker.producer("p").send(Message(topic, body))
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert [message.body for message in take(consumer, 1)] == [body]


# Transactions


def test_the_local_transaction_decides(any_broker: Any, topic: str) -> None:
    producer = any_broker.transaction_producer(f"g-{topic}")
    for number in range(9):
        state = (COMMIT, ROLLBACK)[number % 2]
        result = producer.send_in_transaction(
            Message(topic, str(number).encode()), state, executer=lambda message, arg: arg
        )
        assert (result.local_transaction_state, result.error) == (state, None)
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert sorted(numbers(take(consumer, 5))) == [0, 2, 4, 6, 8]
        assert consumer.poll(9, 0.3) == []


def test_exception_in_a_block_leaves_it_to_the_check(any_broker: Any, topic: str) -> None:
    listener = Answers(UNKNOWN, check=COMMIT)
    producer = any_broker.transaction_producer(f"g-{topic}", listener)
    with pytest.raises(KeyError), producer.transaction(Message(topic, b"17")) as tx:
        raise KeyError("database")
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert [message.transaction_id for message in take(consumer, 1)] == [tx.transaction_id]
    assert {asked.transaction_id for asked in listener.checked} == {tx.transaction_id}


def test_exception_of_a_local_transaction_is_unknown(any_broker: Any, topic: str) -> None:
    def fails(message: Any, arg: Any) -> LocalTransactionState:
        raise KeyError("database")

    listener = Answers(UNKNOWN, check=ROLLBACK)
    producer = any_broker.transaction_producer(f"g-{topic}", listener)
    sent = producer.send_in_transaction(Message(topic, b"x"), executer=fails)
    assert (sent.local_transaction_state, "KeyError" in str(sent.error)) == (UNKNOWN, True)
    eventually(lambda: bool(listener.checked))


def test_most_specific_checker_answers(any_broker: Any, topic: str) -> None:
    producer = any_broker.transaction_producer(f"g-{topic}", check_listener=lambda message: ROLLBACK)
    producer.add_checker(lambda message: COMMIT, topic=topic, tags="paid")
    for tag in ("open", "paid"):
        producer.send_in_transaction(Message(topic, tag.encode(), tags=tag), executer=lambda message, arg: UNKNOWN)
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert [message.body for message in take(consumer, 1)] == [b"paid"]
        assert consumer.poll(9, 0.5) == []


def test_checker_without_an_answer_is_asked_again(any_broker: Any, topic: str) -> None:
    asked: list[str] = []

    def third_time(message: Any) -> Any:
        asked.append(message.transaction_id)
        if len(asked) == 1:
            raise KeyError("database")
        return None if len(asked) == 2 else COMMIT

    producer = any_broker.transaction_producer(f"g-{topic}", check_listener=third_time)
    producer.send_in_transaction(Message(topic, b"x"), executer=lambda message, arg: UNKNOWN)
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        assert [message.body for message in take(consumer, 1, 30)] == [b"x"]


def test_same_end_again_succeeds_and_another_is_refused(any_broker: Any, topic: str) -> None:
    producer = any_broker.transaction_producer(f"g-{topic}")
    with producer.transaction(Message(topic, b"x")) as tx:
        tx.commit()
        tx.commit()
        with pytest.raises(txstore.AlreadyEndedError) as raised:
            tx.rollback()
        assert raised.value.outcome == "committed"
    assert any_broker.end_transaction(tx.transaction_id, COMMIT, producer_group=f"g-{topic}").already
    with pytest.raises(txstore.WrongGroupError):
        any_broker.end_transaction(tx.send_result, COMMIT, producer_group="another")
    with pytest.raises(txstore.TransactionNotFoundError):
        any_broker.end_transaction("7F000001" + "0" * 24, COMMIT)


def test_threads_share_a_producer(any_broker: Any, topic: str) -> None:
    producer = any_broker.transaction_producer(f"g-{topic}", Answers(COMMIT))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                producer.send_in_transaction(Message(topic, f"{number}.{step}".encode()))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        found = sorted(message.body for message in take(consumer, 60))
    assert found == sorted(f"{n}.{s}".encode() for n in range(6) for s in range(10))


# Consumers


def test_next_message_acknowledges_the_last(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 3)
    group = f"c-{topic}"
    with any_broker.consumer(group, topic) as consumer:
        assert len(consumer.poll(1, 5)) == 1
        assert any_broker.consumer_offset(topic, group, 0) is None
        assert len(consumer.poll(1, 5)) == 1
        assert any_broker.consumer_offset(topic, group, 0) == 1
    assert any_broker.consumer_offset(topic, group, 0) == 2, "leaving normally acknowledges the current message"


def test_exception_or_break_does_not_acknowledge_the_current_message(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 3)
    group = f"c-{topic}"
    with pytest.raises(KeyError), any_broker.consumer(group, topic) as consumer:  # noqa: PT012
        for message in consumer:
            if message.body == b"1":
                raise KeyError("shipping")
    with any_broker.consumer(group, topic) as consumer:
        for message in consumer:
            assert message.body == b"1"
            break
        assert numbers(consumer.poll(1, 5)) == [1], "the same consumer gets it again"
    assert any_broker.consumer_offset(topic, group, 0) == 2


def test_messages_skipped_by_tags_are_acknowledged(any_broker: Any, topic: str) -> None:
    producer = any_broker.producer("p")
    for number, tag in enumerate(["paid", "open", "refunded", None, "open"]):
        producer.send(Message(topic, str(number).encode(), tags=tag), queue_id=0)
    group = f"c-{topic}"
    with any_broker.consumer(group, topic, tags="paid || refunded") as consumer:
        assert numbers(take(consumer, 2)) == [0, 2]
        assert consumer.poll(9, 0.3) == []
        assert any_broker.consumer_offset(topic, group, 0) == 5


def test_groups_are_independent(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 4)
    for group in (f"a-{topic}", f"b-{topic}"):
        with any_broker.consumer(group, topic) as consumer:
            assert numbers(take(consumer, 4)) == [0, 1, 2, 3]


def test_start_at_a_time_skips_earlier_messages(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 4)
    time.sleep(0.05)
    middle = datetime.now(UTC)
    time.sleep(0.05)
    fill(any_broker, topic, 2)
    with any_broker.consumer(f"c-{topic}", topic, start=middle) as consumer:
        assert numbers(take(consumer, 2)) == [0, 1]
        assert consumer.poll(9, 0.3) == []


def test_topic_created_later_is_read_from_its_first_message(any_broker: Any, topic: str) -> None:
    with any_broker.consumer(f"c-{topic}", topic, start=ConsumeFromWhere.FIRST) as consumer:
        assert consumer.poll(9, 0.1) == []
        fill(any_broker, topic, 4, queues=4)
        assert sorted(numbers(take(consumer, 4))) == [0, 1, 2, 3]


def test_closing_ends_a_loop_in_another_thread(any_broker: Any, topic: str) -> None:
    consumer = any_broker.consumer(f"c-{topic}", topic)
    thread = threading.Timer(0.3, consumer.close)
    thread.start()
    assert list(consumer) == []
    thread.join()
    with pytest.raises(txstore.StoreClosedError):
        consumer.poll()


def test_members_rebalance_over_a_connection(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 40, queues=4)
    group = f"c-{topic}"
    with any_broker.consumer(group, topic) as first, any_broker.consumer(group, topic) as second:
        seen: list[int] = []

        def whole() -> bool:
            seen.extend(numbers(first.poll(4, 0.05) + second.poll(4, 0.05)))
            return len(seen) == 40 and len(first.queue_ids) == len(second.queue_ids) == 2

        eventually(whole)
        assert sorted(seen) == list(range(40))
        assert sorted(first.queue_ids + second.queue_ids) == [0, 1, 2, 3]
        with pytest.raises(txstore.InvalidOptionError, match="has the tags"):
            any_broker.consumer(group, topic, tags="a")


def test_broadcasting_gives_every_member_every_message(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 8, queues=4)
    model = MessageModel.BROADCASTING
    for name in ("a", "b"):
        with any_broker.consumer(f"c-{topic}", topic, message_model=model, instance_name=name) as member:
            assert sorted(numbers(take(member, 8))) == list(range(8))
    with any_broker.consumer(f"c-{topic}", topic, message_model=model, instance_name="a") as member:
        assert member.poll(9, 0.3) == [], "its offsets are kept by its name"


def test_handler_that_fails_gets_it_again_later(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 20, queues=4)
    seen: list[tuple[int, int]] = []

    def handle(message: Any) -> ConsumeResult | None:
        seen.append((int(message.body), message.reconsume_times))
        if len(seen) == 21:
            consumer.close()
        if message.reconsume_times == 0 and message.body == b"7":
            message.retry(delay_level=1)
        return None

    with any_broker.consumer(f"c-{topic}", topic) as consumer:
        consumer.run(handle, threads=4)
    assert sorted(seen) == sorted([*((number, 0) for number in range(20)), (7, 1)])


def test_orderly_message_that_always_fails_becomes_a_dead_letter(any_broker: Any, topic: str) -> None:
    fill(any_broker, topic, 4)
    group = f"c-{topic}"
    seen: list[int] = []

    def handle(message: Any) -> ConsumeResult | None:
        seen.append(int(message.body))
        return ConsumeResult.RECONSUME_LATER if message.body == b"1" else None

    with any_broker.consumer(group, topic, max_reconsume_times=1) as consumer:
        consumer.run(handle, threads=2, orderly=True, timeout=5)
    assert seen == [0, 1, 1, 2, 3]
    with any_broker.consumer(f"dead-{topic}", f"%DLQ%{group}") as consumer:
        assert numbers(take(consumer, 1)) == [1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tags": "||"}, "contain no tag"),
        ({"start": "first!"}, "ConsumeFromWhere.FIRST"),
        ({"instance_name": "m"}, "BROADCASTING"),
    ],
)
def test_error_for_a_wrong_option_says_what_is_accepted(
    any_broker: Any, topic: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(txstore.InvalidOptionError, match=says):
        any_broker.consumer("c", topic, **options)
