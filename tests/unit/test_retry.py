"""Guards retries: a message that failed is delivered again, later each time, and ends as a dead letter."""

import itertools
import time
from typing import Any

import pytest

from txstore import (
    ConsumeFromWhere,
    ConsumeResult,
    EmbeddedBroker,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    Message,
    MessageNotFoundError,
)
from txstore.consumer.progress import DeadLetter
from txstore.errors import DiskFullError
from txstore.testing import FakeBroker

RETRY_TOPIC = "%RETRY%c"
SOON = 10.0


@pytest.fixture(params=["fake", "store"])
def any_broker(request: pytest.FixtureRequest) -> Any:
    """The same rules hold on the embedded broker and on the fake one."""
    if request.param == "fake":
        return FakeBroker()
    return request.getfixturevalue("broker")


def send(broker: Any, *bodies: str, topic: str = "t", **options: Any) -> None:
    producer = broker.producer("p")
    for body in bodies:
        producer.send(Message(topic, body.encode(), **options), queue_id=0)


def test_retried_message_is_delivered_again_unchanged(any_broker: Any) -> None:
    send(any_broker, "bad", "good", tags="x", keys=["k"])
    with any_broker.consumer("c", "t", tags="x || y") as consumer:
        first, second = consumer.poll(9)
        first.retry(delay_level=1)
        assert [message.body for message in (first, second)] == [b"bad", b"good"]
        (again,) = consumer.poll(9, SOON)
        assert (again.body, again.tags, again.keys, again.topic) == (b"bad", "x", ("k",), "t")
        assert (again.message_id, again.reconsume_times) == (first.message_id, 1)
        assert again.properties["RETRY_TOPIC"] == "t"
        assert again.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
        again.retry(1)
        (third,) = consumer.poll(9, SOON)
        assert third.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
        assert third.reconsume_times == 2
        assert consumer.poll(9) == []
    assert any_broker.consumer_offset("t", "c", 0) == 2
    assert any_broker.consumer_offset(RETRY_TOPIC, "c", 0) == 2


def test_message_is_sent_back_only_when_acknowledged(any_broker: Any) -> None:
    send(any_broker, "x")
    with any_broker.consumer("c", "t") as consumer:
        for message in consumer:
            message.retry(1)
            break
        (message,) = consumer.poll()
        assert message.reconsume_times == 0, "the loop was left: it is delivered again at once, and nothing else"
    assert any_broker.read_queues(RETRY_TOPIC) in ((), range(0))


def test_acknowledged_message_cannot_be_retried(any_broker: Any) -> None:
    send(any_broker, "x", "y")
    with any_broker.consumer("c", "t") as consumer:
        (message,) = consumer.poll(1)
        consumer.poll(1)
        with pytest.raises(InvalidMessageError, match="already acknowledged"):
            message.retry()
    messages, _ = any_broker.read("t", 0, 0)
    with pytest.raises(InvalidMessageError, match="no consumer handed it out"):
        messages[0].retry()
    with any_broker.consumer("d", "t") as consumer:
        (message,) = consumer.poll(1)
        for level in (-2, 19):
            with pytest.raises(InvalidOptionError, match="delay_level"):
                message.retry(level)


def test_message_is_a_dead_letter_after_sixteen_retries() -> None:
    broker = FakeBroker()
    send(broker, "never")
    came: list[int] = []
    with broker.consumer("c", "t") as consumer:
        while broker.clock.monotonic() < 60 * 60 * 6:
            for message in consumer.poll(9, 60.0):
                came.append(round(broker.clock.monotonic()))
                message.retry()
    waits = [after - before for before, after in itertools.pairwise(came)]
    minutes = [60 * minute for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert waits == [10, 30, *minutes]
    (letter,) = broker.dead_letters("c")
    assert (letter.body, letter.topic, letter.group, letter.reconsume_times) == (b"never", "t", "c", 17)


def test_dead_letters_are_listed_and_sent_again(any_broker: Any) -> None:
    send(any_broker, "a", "b", tags="x", keys=["k"])
    with any_broker.consumer("c", "t") as consumer, any_broker.consumer("other", "t") as other:
        for message in consumer.poll(9):
            message.retry(-1)
        assert consumer.poll(9) == []
        other.poll(9)
        letters = any_broker.dead_letters("c")
        assert [(letter.body, letter.topic, letter.tags, letter.keys) for letter in letters] == [
            (b"a", "t", "x", ("k",)),
            (b"b", "t", "x", ("k",)),
        ]
        assert len(any_broker.dead_letters("c", limit=1)) == 1
        any_broker.resend(letters[1])
        (message,) = consumer.poll(9, SOON)
        assert (message.body, message.topic, message.reconsume_times) == (b"b", "t", 0)
        assert "DLQ_ORIGIN_TOPIC" not in message.properties
        assert other.poll(9) == [], "other groups did not fail"
    assert any_broker.dead_letters("other") == []
    with pytest.raises(InvalidNameError, match="unknown consumer group nobody\nhint: the groups are c, other"):
        any_broker.dead_letters("nobody")
    with pytest.raises(InvalidOptionError, match="limit"):
        any_broker.dead_letters("c", limit=0)
    lost = DeadLetter("c", "t", "id", b"", None, (), {}, 0, letters[0].died, 99, 99)
    with pytest.raises(MessageNotFoundError, match="no longer has the dead letter id"):
        any_broker.resend(lost)


def test_retries_max_is_respected(any_broker: Any) -> None:
    send(any_broker, "x")
    with any_broker.consumer("c", "t", max_reconsume_times=1) as consumer:
        for _ in range(2):
            for message in consumer.poll(9, SOON):
                message.retry(1)
        assert consumer.poll() == []
    (letter,) = any_broker.dead_letters("c")
    assert letter.reconsume_times == 2
    for wrong in (-1, 2**31, True, "3"):
        with pytest.raises(InvalidOptionError, match="max_reconsume_times"):
            any_broker.consumer("c", "t", max_reconsume_times=wrong)


def test_topics_of_one_group_keep_their_retries_apart(any_broker: Any) -> None:
    send(any_broker, "1", topic="orders")
    send(any_broker, "2", topic="payments")
    with any_broker.consumer("c", "orders") as orders, any_broker.consumer("c", "payments") as payments:
        orders.poll(9)[0].retry(2)
        payments.poll(9)[0].retry(2)
        assert orders.poll(9) == []
        (order,) = orders.poll(9, 60)
        assert order.topic == "orders"
    with any_broker.consumer("c", "orders") as orders:
        assert orders.poll(9) == []
        assert any_broker.consumer_offset(RETRY_TOPIC, "c", 0) == 0, "a broker would deliver both again, and lose none"
    with any_broker.consumer("c", "payments") as payments:
        (payment,) = payments.poll(9, 60)
        assert payment.topic == "payments"
    with any_broker.consumer("c", "payments") as payments:
        assert payments.poll(9, 0.01) == []


def test_message_that_cannot_be_sent_back_is_not_acknowledged(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, "x", "y")
    whole, full = broker.send_back, [True, True]

    def send_back(*arguments: Any) -> Any:
        if full:
            full.pop()
            raise DiskFullError("no space")
        return whole(*arguments)

    monkeypatch.setattr(broker, "send_back", send_back)
    with broker.consumer("c", "t") as consumer:
        (message,) = consumer.poll(1)
        message.retry(2)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                consumer.poll(1)
            assert broker.consumer_offset("t", "c", 0) is None
        assert [message.body for message in consumer.poll(1)] == [b"y"]
        assert broker.consumer_offset("t", "c", 0) == 1
        assert [message.body for message in consumer.poll(1, 60)] == [b"x"]


def test_retry_of_a_committed_message_is_not_a_transaction_record(broker: EmbeddedBroker, scripted: Any) -> None:
    producer = broker.transaction_producer("p", scripted())
    with producer.transaction(Message("t", b"x")) as tx:
        pass
    with broker.consumer("c", "t") as consumer:
        (message,) = consumer.poll()
        message.retry(1)
        (again,) = consumer.poll(9, SOON)
    assert again.transaction_id == tx.transaction_id
    (stored,), _ = broker.store.read(RETRY_TOPIC, 0, 0)
    assert stored.transaction_type == "none"
    assert broker.transaction(tx.transaction_id).state.value == "committed"


def test_retries_survive_a_restart(open_store: Any) -> None:
    broker = open_store()
    send(broker, "x")
    with broker.consumer("c", "t") as consumer:
        consumer.poll()[0].retry(1)
    broker.close()
    broker = open_store()
    with broker.consumer("c", "t") as consumer:
        (message,) = consumer.poll(9, SOON)
        assert (message.body, message.reconsume_times, message.topic) == (b"x", 1, "t")
        message.retry(1)
    broker.close()
    broker = open_store()
    with broker.consumer("c", "t", start=ConsumeFromWhere.LAST) as consumer:
        (message,) = consumer.poll(9, SOON)
        assert message.reconsume_times == 2


def test_handler_that_fails_gets_its_message_again(any_broker: Any) -> None:
    send(any_broker, "raises", "later", "odd", "fine")
    seen: list[tuple[bytes, int]] = []

    def handle(message: Any) -> Any:
        seen.append((message.body, message.reconsume_times))
        if len(seen) == 7:
            consumer.close()
        if message.reconsume_times:
            return None
        if message.body == b"raises":
            message.retry(1)
            raise KeyError("no such order")
        message.retry(1) if message.body in (b"later", b"odd") else None
        return {b"later": ConsumeResult.RECONSUME_LATER, b"odd": "done"}.get(message.body, ConsumeResult.SUCCESS)

    with any_broker.consumer("c", "t") as consumer:
        consumer.run(handle, threads=1)
    first = [body for body, times in seen if times == 0]
    again = [body for body, times in seen if times == 1]
    assert first == [b"raises", b"later", b"odd", b"fine"]
    assert sorted(again) == [b"later", b"odd", b"raises"]
    assert any_broker.consumer_offset("t", "c", 0) == 4


def test_the_default_delay_is_ten_seconds(broker: EmbeddedBroker) -> None:
    send(broker, "x")
    before = time.time() * 1000
    with broker.consumer("c", "t") as consumer:
        consumer.poll()[0].retry()
    ((topic, queue_id, _, _),) = broker.queues("SCHEDULE_TOPIC_XXXX")
    (waiting,), _ = broker.store.read(topic, queue_id, 0)
    assert (queue_id, waiting.real_topic, waiting.reconsume_times) == (2, RETRY_TOPIC, 1)
    assert waiting.store_timestamp_ms >= before - 1
