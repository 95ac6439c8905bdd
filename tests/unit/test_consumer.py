"""Guards consumers: each sees every message of its topic in order, and none is acknowledged before it was handled."""

import threading
import time
from typing import Any

import pytest

from txstore import ConsumeFromWhere, EmbeddedBroker, InvalidOptionError, Message, StoreClosedError
from txstore.testing import FakeBroker

GONE = 0.0


def fill(broker: Any, count: int, **options: Any) -> None:
    broker.producer("p").send_batch(
        [Message("t", str(number).encode(), **options) for number in range(count)], queue_id=0
    )


@pytest.fixture(params=["fake", "store"])
def any_broker(request: pytest.FixtureRequest) -> Any:
    """The same rules hold on the embedded broker and on the fake one."""
    if request.param == "fake":
        return FakeBroker()
    return request.getfixturevalue("broker")


def test_D1_every_message_in_order(any_broker: Any) -> None:
    fill(any_broker, 100)
    with any_broker.consumer("c", "t") as consumer:
        seen = [int(message.body) for _ in range(20) for message in consumer.poll(7, GONE)]
    assert seen == list(range(100))


def test_next_message_acknowledges_the_last(any_broker: Any) -> None:
    fill(any_broker, 3)
    with any_broker.consumer("c", "t") as consumer:
        consumer.poll(1)
        assert any_broker.consumer_offset("t", "c", 0) is None
        consumer.poll(1)
        assert any_broker.consumer_offset("t", "c", 0) == 1
    assert any_broker.consumer_offset("t", "c", 0) == 2, "leaving normally acknowledges the current message"


def test_exception_does_not_acknowledge_the_current_message(any_broker: Any) -> None:
    fill(any_broker, 3)
    with pytest.raises(KeyError), any_broker.consumer("c", "t") as consumer:  # noqa: PT012
        for message in consumer:
            if message.body == b"1":
                raise KeyError("shipping")
    assert any_broker.consumer_offset("t", "c", 0) == 1
    with any_broker.consumer("c", "t") as consumer:
        assert [message.body for message in consumer.poll(9)] == [b"1", b"2"]


def test_break_does_not_acknowledge_the_current_message(any_broker: Any) -> None:
    fill(any_broker, 3)
    with any_broker.consumer("c", "t") as consumer:
        for message in consumer:
            if message.body == b"1":
                break
        assert [message.body for message in consumer.poll(1)] == [b"1"], "the same consumer gets it again at once"
        for message in consumer:
            assert message.body == b"2"
            break
    assert any_broker.consumer_offset("t", "c", 0) == 2


def test_tags_filter_and_skipped_messages_are_acknowledged(any_broker: Any) -> None:
    producer = any_broker.producer("p")
    for number, tag in enumerate(["paid", "open", "refunded", None, "open"]):
        producer.send(Message("t", str(number).encode(), tags=tag), queue_id=0)
    with any_broker.consumer("c", "t", tags="paid || refunded") as consumer:
        assert [message.body for message in consumer.poll(9)] == [b"0", b"2"]
    assert any_broker.consumer_offset("t", "c", 0) == 5
    with any_broker.consumer("nothing", "t", tags="other") as consumer:
        assert consumer.poll(9) == []
        assert any_broker.consumer_offset("t", "nothing", 0) == 5


def test_queues_take_turns(any_broker: Any) -> None:
    producer = any_broker.producer("p")
    for queue_id, count in enumerate((50, 2, 2, 2)):
        producer.send_batch([Message("t", b"x")] * count, queue_id=queue_id)
    with any_broker.consumer("c", "t") as consumer:
        assert [message.queue_id for message in consumer.poll(8)] == [0] * 8
        assert [message.queue_id for message in consumer.poll(8)] == [1, 1, 2, 2, 3, 3, 0, 0], (
            "a long queue does not block the others"
        )


def test_groups_are_independent_and_a_new_group_begins_at_the_first_message(any_broker: Any) -> None:
    fill(any_broker, 2)
    for group in ("a", "b"):
        with any_broker.consumer(group, "t") as consumer:
            assert len(consumer.poll(9)) == 2
    with any_broker.consumer("late", "t", start=ConsumeFromWhere.LAST) as consumer:
        assert consumer.poll(9) == []
        fill(any_broker, 1)
        assert len(consumer.poll(9)) == 1


def test_closed_consumer_is_reported(any_broker: Any) -> None:
    consumer = any_broker.consumer("c", "t")
    consumer.close()
    consumer.close()
    with pytest.raises(StoreClosedError):
        consumer.poll()
    assert list(consumer) == []


@pytest.mark.parametrize("count", [0, -1])
def test_P2_max_messages_below_one_is_refused(any_broker: Any, count: int) -> None:
    with any_broker.consumer("c", "t") as consumer, pytest.raises(InvalidOptionError):
        consumer.poll(count)


def test_iteration_waits_for_messages(broker: EmbeddedBroker) -> None:
    def later() -> None:
        time.sleep(0.05)
        broker.producer("p").send(Message("t", b"x"))

    thread = threading.Thread(target=later)
    with broker.consumer("c", "t") as consumer:
        thread.start()
        for message in consumer:
            assert message.body == b"x"
            break
    thread.join()


def test_closing_from_another_thread_ends_the_loop(broker: EmbeddedBroker) -> None:
    consumer = broker.consumer("c", "t")
    thread = threading.Timer(0.05, consumer.close)
    thread.start()
    assert list(consumer) == []
    thread.join()


def test_poll_waits_for_its_timeout(broker: EmbeddedBroker) -> None:
    with broker.consumer("c", "t") as consumer:
        before = time.monotonic()
        assert consumer.poll(1, 0.05) == []
        assert 0.04 < time.monotonic() - before < 30


def test_D2_offsets_survive_a_restart_and_never_pass_the_end(open_store: Any) -> None:
    with open_store() as broker:
        fill(broker, 5)
        with broker.consumer("c", "t") as consumer:
            consumer.poll(3)
        with pytest.raises(InvalidOptionError):
            broker.set_consumer_offset("t", "c", 0, 6)
    broker = open_store()
    assert broker.groups() == ["c"]
    with broker.consumer("c", "t") as consumer:
        assert [message.body for message in consumer.poll(9)] == [b"3", b"4"]


def test_D2_offset_beyond_the_end_is_clamped_and_reported(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, 2)
    monkeypatch.setattr(broker, "consumer_offset", lambda topic, group, queue_id: 99 if topic == "t" else None)
    with broker.consumer("c", "t") as consumer:
        assert consumer.poll(9) == []
        assert "beyond the end" in caplog.text
        fill(broker, 1)
        assert len(consumer.poll(9)) == 1


def test_messages_that_retention_removed_are_reported_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txstore import OffsetTooOldError

    fake = FakeBroker()
    fill(fake, 5)
    whole = fake.pull

    def read(topic: str, queue_id: int, queue_offset: int, *rest: Any) -> Any:
        if queue_id == 0 and queue_offset < 3:
            raise OffsetTooOldError("gone", minimum=3)
        return whole(topic, queue_id, queue_offset, *rest)

    monkeypatch.setattr(fake, "pull", read)
    with fake.consumer("c", "t") as consumer:
        assert [message.body for message in consumer.poll(9)] == [b"3", b"4"]
    assert "removed before they were consumed" in caplog.text


def test_D1_messages_taken_before_a_queue_failed_are_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(default_topic_queue_nums=2)
    for queue_id in (0, 0, 1):
        broker.producer("p").send(Message("t", b"x"), queue_id=queue_id)
    read, fails = broker.pull, [True]

    def failing(topic: str, queue_id: int, *rest: Any) -> Any:
        if queue_id == 1 and fails:
            fails.pop()
            raise OSError("no handle left")
        return read(topic, queue_id, *rest)

    monkeypatch.setattr(broker, "pull", failing)
    with broker.consumer("c", "t") as consumer:
        fails.append(True)
        assert [(m.queue_id, m.queue_offset) for m in consumer.poll(9)] == [(0, 0), (0, 1)]
        with pytest.raises(OSError, match="no handle"):
            consumer.poll(9)
        assert [(m.queue_id, m.queue_offset) for m in consumer.poll(9)] == [(1, 0)]


def test_concurrent_acknowledgement_is_not_beyond_the_end(
    any_broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer asks for a queue's range and for the group's offset; between the two another one acknowledges more."""
    fill(any_broker, 1)
    any_broker.set_consumer_offset("t", "c", 0, 1)
    asked: list[str] = []

    def then_another_continues(name: str) -> None:
        ask = getattr(any_broker, name)

        def asks(topic: str, *more: Any) -> Any:
            answer = ask(topic, *more)
            if topic == "t":
                asked.append(name)
                if len(asked) == 1:
                    fill(any_broker, 1)
                    any_broker.set_consumer_offset("t", "c", 0, 2)
            return answer

        monkeypatch.setattr(any_broker, name, asks)

    then_another_continues("queue_range")
    then_another_continues("consumer_offset")
    with any_broker.consumer("c", "t") as consumer:
        consumer.poll(1)
    assert {"queue_range", "consumer_offset"} <= set(asked)
    assert "beyond the end" not in caplog.text


def test_consumer_of_an_unknown_topic_warns(any_broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(any_broker, 1)
    with any_broker.consumer("g", "t"):
        assert "does not exist" not in caplog.text
    with any_broker.consumer("g", "tt"):
        assert "topic tt does not exist, group g waits for it" in caplog.text
