"""Guards messages with a time: delivered at it, once, never before; recalled; also from a transaction and an outbox."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from txstore import (
    InUseError,
    InvalidMessageError,
    Message,
    MessageNotFoundError,
    Server,
    ServerConfig,
    TooManyPendingError,
    TransactionState,
)
from txstore.testing import FakeBroker

HOUR = timedelta(hours=1)
SERVER = ServerConfig(listen="127.0.0.1:0", name_server="127.0.0.1:0")


def now(broker: FakeBroker) -> datetime:
    return datetime.fromtimestamp(broker.clock.time_ms() / 1000, UTC)


def test_message_is_delivered_at_its_time_and_not_before(open_store: Any) -> None:
    broker = open_store()
    due = datetime.now(UTC) + timedelta(seconds=1.2)
    with broker.consumer("c", "t") as consumer:
        broker.producer("p").send(Message("t", b"later", tags="x", keys=["k"], deliver_at=due))
        (message,) = consumer.poll(timeout=10)
        assert datetime.now(UTC) >= due
    assert message.store_timestamp >= due.replace(microsecond=due.microsecond // 1000 * 1000)
    assert (message.body, message.tags, message.keys) == (b"later", "x", ("k",))
    assert broker.topics() == ["t"], "the topic in which it waited is a system topic"


def test_waiting_messages_survive_a_restart(open_store: Any) -> None:
    broker = open_store()
    due = datetime.now(UTC) + timedelta(seconds=1)
    broker.producer("p").send(Message("t", b"later", deliver_at=due))
    broker.close()
    broker = open_store()
    with broker.consumer("c", "t") as consumer:
        assert [message.body for message in consumer.poll(timeout=10)] == [b"later"]
        assert datetime.now(UTC) >= due
    broker.close()
    with open_store().consumer("c", "t") as consumer:
        assert consumer.poll(timeout=0.7) == []


def test_messages_come_in_the_order_of_their_times() -> None:
    broker = FakeBroker()
    producer, start = broker.producer("p"), now(broker)
    for seconds in (3, 1, 2):
        message = Message("t", str(seconds).encode(), deliver_at=start + timedelta(seconds=seconds))
        producer.send(message, queue_id=0)
    with broker.consumer("c", "t") as consumer:
        assert [consumer.poll(timeout=None)[0].body for _ in range(3)] == [b"1", b"2", b"3"]
    assert broker.clock.monotonic() == pytest.approx(3.0)


def test_crash_loses_and_repeats_nothing() -> None:
    broker = FakeBroker()
    producer = broker.producer("p")
    for n in range(10):
        producer.send(Message("t", str(n).encode(), deliver_at=now(broker) + (n + 1) * HOUR), queue_id=0)
    found = []
    for _ in range(5):
        broker.clock.advance(2 * 3600)
        broker.crash()
        broker = broker.reopen()
        with broker.consumer("c", "t") as consumer:
            found += [int(message.body) for message in consumer.poll(timeout=0)]
    assert found == list(range(10))


def test_time_that_has_passed_means_at_once() -> None:
    broker = FakeBroker()
    for past in (timedelta(0), -HOUR, -timedelta(days=20_000)):
        broker.producer("p").send(Message("t", b"now", deliver_at=now(broker) + past))
    with broker.consumer("c", "t") as consumer:
        assert len(consumer.poll(timeout=0)) == 3


def test_time_too_far_ahead_is_refused() -> None:
    broker = FakeBroker(timer_max_delay_sec=HOUR)
    producer = broker.producer("p")
    producer.send(Message("t", b"x", deliver_at=now(broker) + HOUR))
    with pytest.raises(InvalidMessageError, match=r"in 3601 s; timer_max_delay_sec allows 3600 s"):
        producer.send(Message("t", b"x", deliver_at=now(broker) + timedelta(seconds=3601)))


def test_too_many_waiting_messages_are_refused() -> None:
    broker = FakeBroker(timed_messages_max=1)
    producer = broker.producer("p")
    producer.send(Message("t", b"x", deliver_at=now(broker) + HOUR))
    with pytest.raises(TooManyPendingError, match="1 timed messages wait, the maximum that timed_messages_max allows"):
        producer.send(Message("t", b"x", deliver_at=now(broker) + HOUR))
    producer.send(Message("t", b"at once"))


def test_time_is_kept_to_the_millisecond_and_rounded_up() -> None:
    due = datetime(2030, 1, 2, 3, 4, 5, 6_001, tzinfo=timezone(timedelta(hours=2)))
    message = Message("t", b"x", deliver_at=due)
    assert message.deliver_at == datetime(2030, 1, 2, 1, 4, 5, 7_000, tzinfo=UTC)
    assert Message("t", b"x").deliver_at is None
    assert message.replace(delay_level=0).deliver_at == message.deliver_at
    assert message.replace(delay_level=1).deliver_at is None
    assert message.turn_topic is None
    assert message != Message("t", b"x")
    assert Message("t", b"x", deliver_at=datetime(1969, 1, 1, tzinfo=UTC)).deliver_at == datetime(
        1969, 1, 1, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("deliver_at", "why"),
    [
        (datetime(2030, 1, 1), "has no time zone: 2030-01-01 00:00:00"),
        (1_700_000_000, "must be a datetime, got int"),
        ("tomorrow", "must be a datetime, got str"),
    ],
)
def test_other_values_are_no_time(deliver_at: Any, why: str) -> None:
    with pytest.raises(InvalidMessageError, match=why):
        Message("t", b"x", deliver_at=deliver_at)


def test_time_and_delay_level_exclude_each_other() -> None:
    with pytest.raises(InvalidMessageError, match="exclude each other"):
        Message("t", b"x", delay_level=3, deliver_at=datetime.now(UTC))


def test_transaction_is_delivered_at_its_time_after_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker()
    producer = broker.transaction_producer("p")
    due = now(broker) + HOUR
    with caplog.at_level(logging.WARNING), producer.transaction(Message("t", b"paid", deliver_at=due)) as transaction:
        pass
    assert not any("cleared" in text for text in caplog.messages)
    with pytest.raises(ZeroDivisionError), producer.transaction(Message("t", b"never", deliver_at=due)):
        raise ZeroDivisionError
    with broker.consumer("c", "t") as consumer:
        assert consumer.poll(timeout=3599) == []
        (message,) = consumer.poll(timeout=2)
        assert (message.body, message.message_id) == (b"paid", transaction.transaction_id)
    assert "TXSTORE_DELIVER_MS" not in message.properties


def test_transaction_is_committed_while_its_message_waits_and_tells_until_when() -> None:
    broker = FakeBroker()
    producer, due = broker.transaction_producer("p"), now(broker) + HOUR
    with producer.transaction([Message("t", b"later", deliver_at=due), Message("t", b"at once")]) as transaction:
        pass
    for _ in range(2):
        trace = broker.transaction(transaction.transaction_id)
        assert (trace.state, trace.deliver_at, len(trace.finals)) == (TransactionState.COMMITTED, due, 1)
        until = due.isoformat(timespec="milliseconds")
        assert f"consumers see the message from {until} on, unless it is recalled" in trace.next_step
        assert "rmq_sys_txstore_timed" in trace.why
        assert f"committed to t, for {until}" in trace.explain()
        assert broker.transaction_states([transaction.transaction_id]) == [TransactionState.COMMITTED]
        broker.clock.advance(3601)  # When it is delivered, its transaction is still explained by what it was.
    (at_once,) = (row for row in broker.transactions(state=None) if row.transaction_id != transaction.transaction_id)
    assert broker.transaction(str(at_once.transaction_id)).deliver_at is None


def test_transaction_that_is_committed_after_its_time_is_delivered_at_once() -> None:
    broker = FakeBroker()
    producer = broker.transaction_producer("p")
    with producer.transaction(Message("t", b"late", deliver_at=now(broker) + HOUR)):
        broker.clock.advance(3601)
    with broker.consumer("c", "t") as consumer:
        assert [message.body for message in consumer.poll(timeout=0)] == [b"late"]


def test_several_messages_of_a_transaction_have_times_of_their_own() -> None:
    broker = FakeBroker()
    producer = broker.transaction_producer("p")
    messages = [Message("t", b"2", deliver_at=now(broker) + 2 * HOUR), Message("t", b"0"),
                Message("t", b"1", deliver_at=now(broker) + HOUR)]  # fmt: skip
    with producer.transaction(messages):
        pass
    broker.crash()
    broker = broker.reopen()
    with broker.consumer("c", "t") as consumer:
        for expected, seconds in ((b"0", 0), (b"1", 3600), (b"2", 7200)):
            assert [message.body for message in consumer.poll(timeout=None)] == [expected]
            assert broker.clock.monotonic() == pytest.approx(seconds, abs=0.1)


def test_topic_with_a_waiting_message_is_not_deleted() -> None:
    broker = FakeBroker()
    with broker.producer("p") as producer:
        producer.send(Message("t", b"x", deliver_at=now(broker) + HOUR))
    with pytest.raises(InUseError, match="delayed"):
        broker.delete_topic("t")


def test_many_messages_of_one_second_are_delivered_within_the_next(open_store: Any) -> None:
    broker = open_store()
    due = datetime.now(UTC) + timedelta(seconds=1)
    broker.producer("p").send_batch([Message("t", b"x", deliver_at=due) for _ in range(2_000)], queue_id=0)
    count, until = 0, time.monotonic() + 30
    with broker.consumer("c", "t") as consumer:
        while count < 2_000 and time.monotonic() < until:
            count += len(consumer.poll(timeout=5))
    assert count == 2_000


def test_recalled_message_is_never_delivered() -> None:
    broker = FakeBroker()
    producer, due = broker.producer("p"), now(broker) + HOUR
    recalled, kept = (producer.send(Message("t", body, deliver_at=due)) for body in (b"recalled", b"kept"))
    assert producer.send(Message("t", b"at once")).recall_handle is None
    assert producer.recall(str(recalled.recall_handle)) == recalled.message_id
    with pytest.raises(MessageNotFoundError, match="was delivered, recalled or never sent"):
        producer.recall(str(recalled.recall_handle))
    broker.crash()
    broker = broker.reopen()
    with broker.consumer("c", "t") as consumer:
        assert [message.body for message in consumer.poll(timeout=7200)] == [b"at once"]
        assert [message.body for message in consumer.poll(timeout=7200)] == [b"kept"]
    with pytest.raises(MessageNotFoundError):
        broker.producer("p").recall(str(kept.recall_handle))
    with pytest.raises(InvalidMessageError, match='"x" is not a recall handle'):
        broker.producer("p").recall("x")


def test_connected_producer_has_times_and_recalls(open_store: Any) -> None:
    broker = open_store()
    with Server(broker, SERVER) as server, txstore.connect(str(server.name_server)) as remote:
        producer = remote.producer("p")
        due = datetime.now(UTC) + timedelta(seconds=4)
        recalled, kept = (producer.send(Message("t", body, deliver_at=due)) for body in (b"recalled", b"kept"))
        assert producer.recall(str(recalled.recall_handle)) == recalled.message_id
        with pytest.raises(MessageNotFoundError, match="was delivered, recalled or never sent"):
            producer.recall(str(recalled.recall_handle))
        with pytest.raises(InvalidMessageError, match="timer_max_delay_sec"):
            producer.send(Message("t", b"x", deliver_at=due + timedelta(days=4)))
        with broker.consumer("c", "t") as consumer:
            (message,) = consumer.poll(timeout=60)
            assert (message.message_id, datetime.now(UTC) >= due) == (kept.message_id, True)


def test_producer_on_a_loop_has_times_and_recalls(tmp_path: Path) -> None:
    async def run() -> None:
        async with txstore.aio.open(tmp_path / "store") as broker, broker.producer("p") as producer:
            due = datetime.now(UTC) + timedelta(seconds=4)
            recalled, kept = [await producer.send(Message("t", body, deliver_at=due)) for body in (b"1", b"2")]
            assert await producer.recall(str(recalled.recall_handle)) == recalled.message_id
            async with broker.consumer("c", "t") as consumer:
                (message,) = await consumer.poll(timeout=60)
            assert (message.message_id, datetime.now(UTC) >= due) == (kept.message_id, True)

    asyncio.run(run())
