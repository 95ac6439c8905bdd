"""Guards `message.ack()` and `message.nack()`: each decides about one message, also if an exception follows.

They only mark the message. The consumer applies that when it is used next, when its loop is left or it is closed, and
when its offsets are written. The first call counts; a call that can have no effect is an error.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import txstore
from tests.waiting import eventually
from txstore import ConsumeResult, EmbeddedBroker, InvalidMessageError, InvalidOptionError, Message, MessageModel
from txstore.errors import DiskFullError
from txstore.testing import FakeBroker

SOON = 10.0


@pytest.fixture(params=["fake", "store", "remote", "shared"])
def any_broker(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """The same rules hold on all brokers."""
    if request.param == "fake":
        yield FakeBroker()
    elif request.param == "store":
        yield request.getfixturevalue("broker")
    elif request.param == "shared":
        with txstore.open(tmp_path / "s", shared=True, default_topic_queue_nums=1) as shared:
            yield shared
    else:
        server = txstore.serve(tmp_path / "s", listen=None, unix=str(tmp_path / "socket"), name_server=None)
        long: dict[str, Any] = {"send_msg_timeout": 60, "request_timeout": 60}
        with server, txstore.connect(f"unix:{tmp_path / 'socket'}", **long) as remote:
            yield remote


def fill(broker: Any, count: int, topic: str = "t") -> None:
    broker.producer("p").send_batch([Message(topic, b"%d" % number) for number in range(count)], queue_id=0)


def take(consumer: Any, count: int) -> list[Any]:
    """The next messages; a remote broker's arrive a moment later."""
    taken: list[Any] = []

    def more() -> bool:
        # Only one call of `poll` may hand out messages here, because the next one would acknowledge them.
        taken[:] = taken or consumer.poll(count, 0.1)
        return bool(taken)

    eventually(more)
    return taken


def bodies(messages: list[Any]) -> list[int]:
    return [int(message.body) for message in messages]


def offset(broker: Any, group: str = "c", topic: str = "t") -> int:
    """Where the group continues in queue 0; 0 if it has no offset."""
    rows = (row for row in broker.lag(group) if (row.topic, row.queue_id) == (topic, 0))
    return next((row.consumer_offset or 0 for row in rows), 0)


def test_acknowledged_messages_stay_so_after_an_exception(any_broker: Any) -> None:
    fill(any_broker, 5)
    with pytest.raises(KeyError), any_broker.consumer("c", "t") as consumer:  # noqa: PT012
        for message in take(consumer, 5):
            if message.body == b"3":
                raise KeyError("shipping")
            message.ack()
    assert offset(any_broker) == 3
    with any_broker.consumer("c", "t") as consumer:
        assert bodies(take(consumer, 9)) == [3, 4]


def test_acknowledged_message_stays_so_after_a_break(any_broker: Any) -> None:
    fill(any_broker, 3)
    with any_broker.consumer("c", "t") as consumer:
        for message in consumer:
            message.ack()
            break
        for message in consumer:
            assert message.body == b"1"
            break
        assert bodies(take(consumer, 9)) == [1, 2]


def test_the_rest_is_acknowledged_as_without_it(any_broker: Any) -> None:
    fill(any_broker, 4)
    with any_broker.consumer("c", "t") as consumer:
        take(consumer, 3)[1].ack()
        assert bodies(take(consumer, 9)) == [3]
    assert offset(any_broker) == 4


def test_an_offset_does_not_pass_an_earlier_message(any_broker: Any) -> None:
    fill(any_broker, 4)
    with pytest.raises(KeyError), any_broker.consumer("c", "t") as consumer:  # noqa: PT012
        messages = take(consumer, 4)
        messages[0].ack()
        messages[2].ack()
        raise KeyError("shipping")
    assert offset(any_broker) == 1
    with any_broker.consumer("c", "t") as consumer:
        messages = take(consumer, 9)
        assert bodies(messages) == [1, 2, 3], "a new consumer knows only the offset"
        consumer.acknowledge()
    assert offset(any_broker) == 4


def test_the_same_consumer_does_not_deliver_it_again(any_broker: Any) -> None:
    fill(any_broker, 5)
    with any_broker.consumer("c", "t") as consumer:
        take(consumer, 1)
        for message in take(consumer, 4):
            if int(message.body) in (2, 4):
                message.ack()
        consumer._put_back()
        assert bodies(take(consumer, 9)) == [1, 3]
        consumer.acknowledge()
        assert consumer.poll(9) == []
    assert offset(any_broker) == 5


def test_nack_delivers_again_later_also_after_an_exception(any_broker: Any) -> None:
    fill(any_broker, 2)
    with pytest.raises(KeyError), any_broker.consumer("c", "t") as consumer:  # noqa: PT012
        first, _ = take(consumer, 2)
        first.nack(1)
        raise KeyError("shipping")
    with any_broker.consumer("c", "t") as consumer:
        messages: list[Any] = []
        while len(messages) < 2:
            messages += take(consumer, 9)
    # On a busy machine both come at once.
    assert [(int(message.body), message.reconsume_times, message.topic) for message in messages] == [
        (1, 0, "t"),
        (0, 1, "t"),
    ]


def test_nack_without_an_exception_is_a_retry(any_broker: Any) -> None:
    fill(any_broker, 1)
    with any_broker.consumer("c", "t") as consumer:
        for message in take(consumer, 1):
            message.nack(-1)
    (letter,) = any_broker.dead_letters("c")
    assert (letter.body, letter.topic) == (b"0", "t")
    assert offset(any_broker) == 1


def test_the_first_call_counts(any_broker: Any) -> None:
    fill(any_broker, 3)
    with any_broker.consumer("c", "t") as consumer:
        acked, nacked, retried = take(consumer, 3)
        acked.ack()
        acked.ack()
        for call in (acked.nack, acked.retry):
            with pytest.raises(InvalidMessageError, match="cannot be retried: it was already acknowledged"):
                call()
        nacked.nack(-1)
        nacked.nack(5)
        with pytest.raises(InvalidMessageError, match="cannot be acknowledged: nack was called"):
            nacked.ack()
        with pytest.raises(InvalidMessageError, match="cannot be retried: nack was called"):
            nacked.retry()
        retried.retry(4)
        with pytest.raises(InvalidMessageError, match="cannot be acknowledged: retry was called"):
            retried.ack()
        retried.nack(-1)
    assert sorted(int(letter.body) for letter in any_broker.dead_letters("c")) == [1, 2]
    acked.ack()
    nacked.nack()
    with pytest.raises(InvalidMessageError, match="cannot be acknowledged: it was already sent back"):
        nacked.ack()
    with pytest.raises(InvalidMessageError, match="cannot be retried: it was already acknowledged"):
        acked.nack()


def test_a_call_without_effect_is_an_error(any_broker: Any) -> None:
    fill(any_broker, 2)
    with any_broker.consumer("c", "t") as consumer:
        message = next(iter(consumer))
        with pytest.raises(InvalidMessageError, match="it was returned to its queue and will be delivered again"):
            message.ack()
        (message,) = take(consumer, 1)
        consumer.close()
    for call in (message.ack, message.nack, message.retry):
        with pytest.raises(InvalidMessageError, match="it was returned to its queue and will be delivered again"):
            call()
    messages, _ = any_broker.read("t", 0, 0)
    with pytest.raises(InvalidMessageError, match="cannot be acknowledged: no consumer handed it out"):
        messages[0].ack()
    with pytest.raises(InvalidMessageError, match="cannot be retried: no consumer handed it out"):
        messages[0].nack()
    for level in (-2, 19):
        with pytest.raises(InvalidOptionError, match=r"delay_level:? must be between -1 and 18"):
            messages[0].nack(level)


def test_threads_may_acknowledge(any_broker: Any) -> None:
    fill(any_broker, 30)
    with any_broker.consumer("c", "t") as consumer:
        messages = take(consumer, 30)
        threads = [threading.Thread(target=message.ack) for message in messages for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        consumer._put_back()
        fill(any_broker, 1)
        assert bodies(take(consumer, 9)) == [0], "of the second batch"
    assert offset(any_broker) == 31


def test_offsets_are_reported_while_the_consumer_does_other_work(tmp_path: Any) -> None:
    """A consumer that works for minutes on one batch does not get its acknowledged messages again after a crash."""
    path = tmp_path / "s"
    server = txstore.serve(path, listen=None, unix=str(tmp_path / "socket"), name_server=None)
    options: dict[str, Any] = {"send_msg_timeout": 60, "persist_consumer_offset_interval": 0.05}
    with server, txstore.connect(f"unix:{tmp_path / 'socket'}", **options) as remote:
        fill(remote, 3)
        with remote.consumer("c", "t") as consumer:
            first, second, _ = take(consumer, 3)
            first.ack()
            second.nack(-1)
            eventually(lambda: offset(remote) == 2)
            eventually(lambda: len(remote.dead_letters("c")) == 1)


def test_offsets_are_written_while_the_consumer_does_other_work(open_store: Any) -> None:
    broker = open_store(flush_consumer_offset_interval=0.05)
    fill(broker, 3)
    with broker.consumer("c", "t") as consumer:
        take(consumer, 3)[0].ack()
        eventually(lambda: broker.store.consumer_offset("t", "c", 0) == 1)


def test_a_message_that_cannot_be_sent_back_is_not_passed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DiskFullError("the disk is full")

    fill(broker, 3)
    with broker.consumer("c", "t") as consumer:
        first, second, _ = take(consumer, 3)
        first.ack()
        second.nack(-1)
        with monkeypatch.context() as patch:
            patch.setattr(broker, "send_back", full)
            assert offset(broker) == 1
            with pytest.raises(DiskFullError):
                consumer.acknowledge()
            assert offset(broker) == 1
        consumer.acknowledge()
        assert offset(broker) == 3
        assert [letter.body for letter in broker.dead_letters("c")] == [b"1"]
    fill(broker, 1)
    monkeypatch.setattr(broker, "send_back", full)
    with broker.consumer("c", "t") as consumer:
        for message in consumer:
            message.nack()
            break
    assert offset(broker) == 3, "it is delivered again, because it could not be sent back"


def test_a_reset_offset_is_not_changed(any_broker: Any) -> None:
    fill(any_broker, 3)
    with any_broker.consumer("c", "t") as consumer:
        messages = take(consumer, 3)
        any_broker.reset_offsets("c", "t", 0, queue_id=0)
        eventually(lambda: consumer._queues.get(("t", "t", 0)) is None)
        messages[0].ack()
        assert offset(any_broker) == 0


def test_in_a_handler_it_decides_before_what_the_handler_returns_or_raises(any_broker: Any) -> None:
    fill(any_broker, 4)
    seen: list[int] = []

    def handle(message: Any) -> ConsumeResult | None:
        seen.append(int(message.body))
        if message.body == b"0":
            message.ack()
            raise KeyError("after ack")
        if message.body == b"1":
            message.ack()
            return ConsumeResult.RECONSUME_LATER
        if message.body == b"2":
            message.nack(-1)
        return None

    # Without a retry, a message that counted as failed would be a dead letter at once.
    with any_broker.consumer("c", "t", max_reconsume_times=0) as consumer:
        consumer.run(handle, timeout=1)
    assert sorted(seen) == [0, 1, 2, 3]
    assert [letter.body for letter in any_broker.dead_letters("c")] == [b"2"]
    assert offset(any_broker) == 4


def test_nack_lets_an_orderly_queue_continue(any_broker: Any) -> None:
    fill(any_broker, 3)
    seen: list[int] = []

    def handle(message: Any) -> None:
        seen.append(int(message.body))
        if message.body == b"0":
            message.nack(-1)
        if message.body == b"1" and seen.count(1) == 1:
            raise KeyError("again")

    with any_broker.consumer("c", "t") as consumer:
        consumer.run(handle, orderly=True, timeout=2)
    assert seen == [0, 1, 1, 2], "a failed message holds its queue, and one after nack does not"
    assert [letter.body for letter in any_broker.dead_letters("c")] == [b"0"]


def test_nack_of_a_broadcasting_consumer_drops_the_message(any_broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(any_broker, 1)
    model = MessageModel.BROADCASTING
    with any_broker.consumer("c", "t", message_model=model, instance_name="w") as consumer:
        take(consumer, 1)[0].nack()
        consumer.acknowledge()
    assert "is dropped: a broadcasting consumer has no retries" in caplog.text


async def _use(broker: Any) -> None:
    async with broker:
        await broker.producer("p").send_batch([Message("t", b"%d" % number) for number in range(3)], queue_id=0)
        async with broker.consumer("c", "t") as consumer:
            async for message in consumer:
                message.ack()
                if message.body == b"1":
                    break
            (message,) = await consumer.poll(9, SOON)
            assert message.body == b"2"
            message.nack(-1)


@pytest.mark.parametrize("kind", ["embedded", "shared", "remote"])
def test_on_asyncio_it_needs_no_await(kind: str, tmp_path: Any) -> None:
    import asyncio

    import txstore.aio

    if kind == "embedded":
        asyncio.run(_use(txstore.aio.open(tmp_path / "s")))
    elif kind == "shared":
        asyncio.run(_use(txstore.aio.open(tmp_path / "s", shared=True)))
    else:
        with txstore.serve(tmp_path / "s", listen=None, unix=str(tmp_path / "socket"), name_server=None):
            address = f"unix:{tmp_path / 'socket'}"
            asyncio.run(_use(txstore.aio.connect(address, send_msg_timeout=60, request_timeout=60)))
    with txstore.open(tmp_path / "s", read_only=True) as broker:
        assert offset(broker) == 3
        assert [letter.body for letter in broker.dead_letters("c")] == [b"2"]
