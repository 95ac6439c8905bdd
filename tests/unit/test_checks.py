"""Guards one check: who is asked about which message, what counts as sent, and what operators read of it afterwards."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.waiting import eventually
from txstore import LocalTransactionState, Message, TransactionMessage, TransactionProducer, TransactionState
from txstore.message import HalfMessage
from txstore.producer.registry import Producers
from txstore.testing import FakeBroker
from txstore.testing.background import CallerPool
from txstore.transactions.answer import Answer
from txstore.transactions.check import Checks
from txstore.transactions.history import CheckHistory, CheckRecord
from txstore.transactions.plan import Candidate, DueHalf
from txstore.transactions.pool import Pool
from txstore.transactions.trace import EventKind

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # 1,700,000,000 seconds after the epoch
NEXT_MS = 45_000
FIELDS = ("transaction_id", "group", "half_queue_offset", "answer", "reason")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close_all()


class Asked:
    """A pending transaction whose check is sent by hand, to producers that this test registers."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.producers = Producers()
        self.history = CheckHistory()
        self.pool = CallerPool(4, 5.0, broker.clock.monotonic)
        self.checks = Checks(broker.store, self.producers, self.pool, self.history, broker.clock.time_ms)
        self.sender = broker.transaction_producer("g", check_listener=lambda message: UNKNOWN)
        self.sender.send_in_transaction(Message("other", b"an earlier one"), executer=lambda message, arg: UNKNOWN)
        self.sent = self.sender.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
        broker.clock.advance(60)

    @property
    def waiting(self) -> DueHalf:
        """The facts of the transaction now."""
        return self.broker.store.halves_waiting(-1, 10)[-1]

    def register(self) -> TransactionProducer:
        """A producer that is alive for the check."""
        producer = self.broker.transaction_producer("g", check_listener=lambda message: UNKNOWN)
        self.producers.add(producer)
        return producer

    def send(self, *answers: tuple[TransactionProducer, Callable[[TransactionMessage], object]]) -> bool:
        """Sends the check to candidates, each a producer and what it answers."""
        half = HalfMessage(self.broker.store.half(self.waiting.half_queue_offset))
        candidates = [Candidate(member.number, member, checker) for member, checker in answers]
        return self.checks.send(self.waiting, candidates, half, NEXT_MS)

    @property
    def state(self) -> TransactionState:
        return self.broker.transaction(self.sent.transaction_id).state

    @property
    def is_due(self) -> bool:
        due = [offset for group in self.broker.store.halves_due(10) for offset in group.half_queue_offsets]
        return self.sent.queue_offset in due

    @property
    def records(self) -> list[CheckRecord]:
        return self.history.of([self.sent.queue_offset])


@pytest.fixture
def asked(broker: FakeBroker) -> Asked:
    return Asked(broker)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (COMMIT, TransactionState.COMMITTED),
        (ROLLBACK, TransactionState.ROLLED_BACK),
        (UNKNOWN, TransactionState.PENDING),
    ],
)
def test_answer_ends_its_transaction_and_no_other(
    asked: Asked, answer: LocalTransactionState, state: TransactionState
) -> None:
    producer, bodies = asked.register(), list[bytes]()

    def check(half: TransactionMessage) -> LocalTransactionState:
        bodies.append(half.body)
        return answer

    assert asked.send((producer, check)) is True
    assert bodies == [b"x"]
    assert asked.state is state
    assert asked.records == [CheckRecord(START + timedelta(seconds=60), repr(producer), answer, None)]
    counts, _ = asked.broker.store.transaction_counts()
    answers = {COMMIT: "checks_committed", ROLLBACK: "checks_rolled_back", UNKNOWN: "checks_unknown"}
    assert [counts[name] for name in answers.values()] == [int(answer is one) for one in answers]
    assert [half.topic for half in asked.broker.transactions()] == ["other", "t"][: 2 if answer is UNKNOWN else 1]


def test_check_counts_once_a_checker_was_called_and_the_next_step_is_later(asked: Asked) -> None:
    before = asked.waiting
    assert (before.checks, before.last_check_age_ms) == (0, None)
    asked.send((asked.register(), lambda half: UNKNOWN))
    after = asked.waiting
    assert (after.checks, after.last_check_age_ms, after.answered) == (1, 0, True), "UNKNOWN is an answer, too"
    asked.broker.clock.advance((NEXT_MS - 1) / 1000)
    assert (asked.is_due, asked.waiting.last_check_age_ms) == (False, NEXT_MS - 1)
    asked.broker.clock.advance(0.001)
    assert asked.is_due


def test_first_producer_that_accepts_is_the_only_one_asked(asked: Asked) -> None:
    called = list[int]()
    first, second = asked.register(), asked.register()
    assert asked.send((first, lambda half: called.append(1)), (second, lambda half: called.append(2)))
    assert called == [1]
    assert [record.producer for record in asked.records] == [repr(first)]
    asked.pool.stop()
    assert asked.send((first, lambda half: COMMIT)) is False, "a pool that was stopped accepts no call"
    assert asked.state is TransactionState.PENDING


def test_check_without_an_answer_leaves_the_turn_to_the_next_producer(asked: Asked) -> None:
    def fails(half: TransactionMessage) -> LocalTransactionState:
        raise RuntimeError("no database")

    asked.send((asked.register(), fails))
    assert asked.state is TransactionState.PENDING
    assert (asked.waiting.checks, asked.waiting.answered) == (1, False)
    assert [(record.answer, record.reason) for record in asked.records] == [
        (UNKNOWN, "the check raised RuntimeError: no database")
    ]


def test_producer_that_hangs_delays_no_other_and_is_not_asked_twice_about_one_transaction(broker: FakeBroker) -> None:
    asked, release, called = Asked(broker), threading.Event(), list[bytes]()
    pool = Pool(2, 60.0, time.monotonic)
    checks = Checks(broker.store, asked.producers, pool, asked.history, broker.clock.time_ms)
    hanging, other = asked.register(), asked.register()
    first, second = broker.store.halves_waiting(-1, 10)

    def hangs(half: TransactionMessage) -> LocalTransactionState:
        called.append(half.body)
        release.wait(60)
        return COMMIT

    def send(waiting: DueHalf, member: TransactionProducer, checker: Callable[[TransactionMessage], object]) -> bool:
        half = HalfMessage(broker.store.half(waiting.half_queue_offset))
        return checks.send(waiting, [Candidate(member.number, member, checker)], half, NEXT_MS)

    try:
        assert send(first, hanging, hangs)
        eventually(lambda: called == [b"an earlier one"])
        assert not send(first, other, lambda half: ROLLBACK), "its check is not over"
        assert send(second, other, lambda half: COMMIT)
        eventually(lambda: asked.state is TransactionState.COMMITTED)
    finally:
        release.set()
    assert pool.stop(60)
    assert broker.transactions() == []


def test_producer_that_left_while_its_check_was_queued_is_not_asked(asked: Asked) -> None:
    """Another producer may be, at once."""
    producer = asked.register()
    asked.broker.store.look_again(asked.waiting.half_queue_offset, NEXT_MS)
    assert not asked.is_due
    asked.producers.remove(producer)
    asked.send((producer, lambda half: COMMIT))
    assert asked.state is TransactionState.PENDING
    assert asked.records == []
    assert asked.waiting.checks == 0
    assert asked.is_due


def test_transaction_that_ended_while_its_check_was_queued_is_not_asked_about(asked: Asked) -> None:
    producer, waiting = asked.register(), asked.waiting
    half = HalfMessage(asked.broker.store.half(waiting.half_queue_offset))
    asked.broker.end_transaction(asked.sent.transaction_id, ROLLBACK)
    asked.checks.send(waiting, [Candidate(producer.number, producer, lambda half: COMMIT)], half, NEXT_MS)
    assert asked.state is TransactionState.ROLLED_BACK
    assert asked.records == []


def test_store_that_was_closed_while_a_check_was_queued_is_not_asked_about(asked: Asked) -> None:
    producer, waiting = asked.register(), asked.waiting
    half = HalfMessage(asked.broker.store.half(waiting.half_queue_offset))
    called = list[object]()
    asked.broker.close()
    asked.checks.send(waiting, [Candidate(producer.number, producer, called.append)], half, NEXT_MS)
    assert called == []


def test_end_that_fails_after_a_check_is_the_reason_of_its_record(asked: Asked) -> None:
    def commits_late(half: TransactionMessage) -> LocalTransactionState:
        asked.broker.end_transaction(asked.sent.transaction_id, ROLLBACK)
        return COMMIT

    asked.send((asked.register(), commits_late))
    assert asked.state is TransactionState.ROLLED_BACK
    [record] = asked.records
    assert (record.answer, (record.reason or "").partition(":")[0]) == (COMMIT, "the end failed")
    assert "rolled back" in (record.reason or "")


def test_history_of_a_transaction_tells_when_and_how_it_was_checked(broker: FakeBroker) -> None:
    """As `txstore tx explain` shows it."""
    answers = iter([UNKNOWN, "yes", COMMIT])
    producer = broker.transaction_producer("g", check_listener=lambda message: next(answers))  # type: ignore[arg-type]
    sent = producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
    for seconds in (6, 60, 60):
        broker.clock.advance(seconds)
        broker.run_checks()
    events = broker.transaction(sent.transaction_id).events
    assert [(event.time, event.text) for event in events if event.kind is EventKind.CHECKED] == [
        (START + timedelta(seconds=6), f"{producer!r} was asked: UNKNOWN"),
        (
            START + timedelta(seconds=66),
            f"{producer!r} was asked: UNKNOWN (the check returned str, not a LocalTransactionState)",
        ),
        (START + timedelta(seconds=126), f"{producer!r} was asked: COMMIT"),
    ]


@pytest.mark.parametrize(
    ("answer", "level", "text", "name", "reason"),
    [
        (COMMIT, logging.INFO, "answered COMMIT", "COMMIT", None),
        (UNKNOWN, logging.INFO, "answered UNKNOWN", "UNKNOWN", None),
        (Answer(UNKNOWN, sent=True), logging.INFO, "sent", "UNKNOWN", None),
        (Answer(UNKNOWN, "over a slow line", sent=True), logging.INFO, "sent: over a slow line", "UNKNOWN", None),
        (
            7,
            logging.WARNING,
            "answered UNKNOWN: the check returned int, not a LocalTransactionState",
            "UNKNOWN",
            "the check returned int, not a LocalTransactionState",
        ),
    ],
)
def test_check_is_a_line_of_the_log_with_fields(
    asked: Asked,
    caplog: pytest.LogCaptureFixture,
    answer: object,
    level: int,
    text: str,
    name: str,
    reason: str | None,
) -> None:
    with caplog.at_level(logging.INFO, "txstore.check"):
        asked.send((asked.register(), lambda half: answer))
    [line] = [record for record in caplog.records if record.name == "txstore.check"]
    assert line.levelno == level
    assert line.getMessage() == f"transaction {asked.sent.transaction_id} of group g: check {text}"
    fields = {key: value for key, value in vars(line).items() if key in FIELDS}
    said = answer.reason if isinstance(answer, Answer) else reason
    assert fields == {
        "transaction_id": asked.sent.transaction_id,
        "group": "g",
        "half_queue_offset": asked.sent.queue_offset,
        "answer": name,
        "reason": said,
    }


def test_message_of_a_check_is_that_of_its_transaction(broker: FakeBroker) -> None:
    seen = list[TransactionMessage]()

    def check(message: TransactionMessage) -> LocalTransactionState:
        seen.append(message)
        return COMMIT

    producer = broker.transaction_producer("g", check_listener=check)
    ids = {
        body: producer.send_in_transaction(Message("t", body), executer=lambda message, arg: UNKNOWN).transaction_id
        for body in (b"1", b"2")
    }
    broker.clock.advance(6)
    assert broker.run_checks() == 2
    assert {message.body: message.transaction_id for message in seen} == ids
    assert [message.body for message in broker.messages("t")] == [b"1", b"2"]
