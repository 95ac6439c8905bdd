"""Guards delay levels: a delayed message is delivered once, not before its time and soon after it."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest

from txstore import InvalidMessageError, Message
from txstore.broker.delay import Delays
from txstore.errors import DiskFullError
from txstore.testing import FakeBroker, ManualClock


def test_delayed_message_is_delivered_at_its_time(open_store: Any) -> None:
    broker = open_store()
    with broker.consumer("c", "t") as consumer:
        began = time.time()
        broker.producer("p").send(Message("t", b"later", tags="x", keys=["k"], delay_level=1))
        (message,) = consumer.poll(timeout=30)
    waited = time.time() - began
    assert waited >= 0.99, f"it came {1 - waited:.3f} s too soon"
    assert (message.body, message.tags, message.keys) == (b"later", "x", ("k",))
    assert "DELAY" not in message.properties
    assert broker.topics() == ["t"], "the topic in which it waited is a system topic"


def test_waiting_messages_survive_a_restart(open_store: Any) -> None:
    broker = open_store()
    producer = broker.producer("p")
    for level in (1, 2):
        producer.send(Message("t", str(level).encode(), delay_level=level))
    seen: list[bytes] = []
    for count in (1, 2):
        broker.close()
        broker = open_store()
        with broker.consumer("c", "t") as consumer:
            while len(seen) < count:  # On a slow disk both are due after the first opening.
                seen += [message.body for message in consumer.poll(timeout=60)]
            assert consumer.poll(timeout=0.7) == [] or count == 1
    assert seen == [b"1", b"2"]


def test_fake_broker_delays_by_its_clock() -> None:
    broker = FakeBroker()
    producer = broker.producer("p")
    for level in (2, 1, 1):
        producer.send(Message("t", str(level).encode(), delay_level=level), queue_id=0)
    with broker.consumer("c", "t") as consumer:
        assert consumer.poll(timeout=0.9) == []
        broker.clock.advance(0.1)
        assert [message.body for message in consumer.poll()] == [b"1", b"1"]
        assert [message.body for message in consumer.poll(timeout=None)] == [b"2"]
    assert broker.clock.monotonic() == pytest.approx(5.0)


@pytest.mark.parametrize("level", [-1, 19])
def test_invalid_delay_level_is_refused(level: int) -> None:
    with pytest.raises(InvalidMessageError, match=f"delay_level must be between 0 and 18, got {level}$"):
        Message("t", b"x", delay_level=level)


class Engine:
    """Answers rounds as scripted."""

    def __init__(self, *answers: tuple[int, Sequence[str], int | None] | Exception) -> None:
        self.answers = list(answers)

    def deliver_delayed(self, max_messages: int = 0) -> tuple[int, Sequence[str], int | None]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_round_reports_when_the_next_is_due(caplog: pytest.LogCaptureFixture) -> None:
    delays = Delays(
        Engine((1, [], 250), (0, [], None), (256, ["message 3 is not delivered"], 0)), ManualClock().monotonic
    )
    assert [delays.deliver(), delays.deliver(), delays.deliver()] == [0.25, None, 0.0]
    assert "message 3 is not delivered" in caplog.text


def test_full_disk_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    engine = Engine(DiskFullError("full"), DiskFullError("still full"), (2, [], None))
    delays = Delays(engine, clock.monotonic)
    with caplog.at_level(logging.WARNING, "txstore.delay"):
        for _ in range(13):
            assert delays.deliver() is None
            clock.advance(0.5)
    assert [record.message for record in caplog.records] == [
        "delayed messages are postponed: full",
        "delayed messages are postponed: still full",
    ]
    clock.advance(5)
    delays.deliver()
    assert not engine.answers
