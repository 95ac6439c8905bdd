"""Guards what a producer of transactions tells its broker and its database, and the words with which it refuses."""

import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from txstore import (
    InvalidOptionError,
    LocalTransactionState,
    Message,
    MessageQueue,
    StoreClosedError,
    TransactionListener,
    TransactionMessage,
)
from txstore.errors import AlreadyEndedError, InvalidNameError, StoreIOError, TxStoreError
from txstore.producer import TransactionProducer
from txstore.testing import FakeBroker

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
MESSAGE = Message("t", b"x")


def commits(message: object, arg: object = None) -> LocalTransactionState:
    return COMMIT


def answers(message: object) -> LocalTransactionState:
    return COMMIT


class Recording(FakeBroker):
    """A broker that records which local transactions have ended and which producers register; `broken` fails both."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []
        self.registered: list[object] = []
        self.broken = False

    def local_transaction_ended(self, half: Any, /) -> None:
        self.ended.append(half.message_id)
        if self.broken:
            raise StoreIOError("the disk is gone")
        super().local_transaction_ended(half)

    def register_producer(self, producer: Any) -> int:
        self.registered.append((producer, producer.number))
        return super().register_producer(producer)


class Rows:
    """A database that records what it is asked, and answers each check with COMMIT."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        return COMMIT

    def clean(self, before: datetime) -> int:
        self.asked.append(("clean", before))
        return 0

    def transaction(
        self,
        producer: TransactionProducer,
        message: Message | Sequence[Message],
        session: object,
        *,
        queue_id: Any,
        selector: Any,
        arg: Any,
    ) -> Any:
        self.asked.append((producer, message, session, queue_id, selector, arg))
        return "the block"


# Queues ---------------------------------------------------------------------------------------------------------------


def by_block(producer: TransactionProducer, **how: Any) -> None:
    with producer.transaction(MESSAGE, **how):
        pass


def by_call(producer: TransactionProducer, arg: Any = None, **how: Any) -> None:
    producer.send_in_transaction(MESSAGE, arg, executer=commits, **how)


@pytest.mark.parametrize("send", [by_block, by_call])
def test_committed_message_is_in_the_queue_that_its_sender_chose(send: Callable[..., None]) -> None:
    fake = FakeBroker(default_topic_queue_nums=4)
    producer = fake.transaction_producer("g")
    for _ in range(2):  # The first time the producer asks the broker for the queues.
        send(producer, queue_id=3)
        send(producer, selector=lambda queues, message, arg: queues[arg], arg=2)
        send(producer, queue_id=1, selector=lambda queues, message, arg: 0)
    send(producer)
    for _ in range(5):
        send(producer)
    assert [message.queue_id for message in fake.messages("t")] == [3, 2, 1, 3, 2, 1, 0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("send", [by_block, by_call])
def test_queue_that_does_not_exist_stores_no_half_message(send: Callable[..., None]) -> None:
    fake = FakeBroker(default_topic_queue_nums=2)
    producer = fake.transaction_producer("g")
    for _ in range(2):
        with pytest.raises(
            InvalidNameError, match=r"^topic t has no queue 2 that accepts messages\nhint: its queues are 0, 1$"
        ):
            send(producer, queue_id=2)
        with pytest.raises(InvalidNameError, match=r"^the selector must .* or a queue id, got 'one'$"):
            send(producer, selector=lambda queues, message, arg: "one")
        send(producer)
    assert len(fake.messages("t")) == 2


@pytest.mark.parametrize("send", [by_block, by_call])
def test_selector_chooses_among_the_queues_of_the_topic(send: Callable[..., None]) -> None:
    producer = FakeBroker(default_topic_queue_nums=2).transaction_producer("g")
    seen: list[object] = []

    def select(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        seen.extend([list(queues), message, arg])
        return queues[0]

    send(producer, selector=select, arg=7)
    assert seen == [[MessageQueue("t", 0), MessageQueue("t", 1)], MESSAGE, 7]


# Ends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [by_block, by_call])
def test_end_names_the_producer_group(send: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    producer = FakeBroker().transaction_producer("g")
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(producer, "_end", lambda half, *how: told.append(how))
    send(producer)
    assert told == [(COMMIT, "g")]


def test_block_that_another_outcome_contradicts_raises_on_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Recording()
    producer = fake.transaction_producer("g")

    def contradicts(*arguments: object) -> None:
        raise AlreadyEndedError("it was rolled back")

    monkeypatch.setattr(producer, "_end", contradicts)
    with pytest.raises(AlreadyEndedError), producer.transaction(MESSAGE) as tx:
        pass
    assert fake.ended == [tx.transaction_id]


# Checks ---------------------------------------------------------------------------------------------------------------


def test_local_transaction_that_has_ended_may_be_checked() -> None:
    """Also one that was interrupted. One that told its end needs no check."""
    fake = Recording()
    producer = fake.transaction_producer("g")
    committed = producer.send_in_transaction(MESSAGE, executer=commits)
    unknown = producer.send_in_transaction(MESSAGE, executer=lambda message, arg: UNKNOWN)
    assert fake.ended == [unknown.transaction_id]
    seen: list[str] = []

    def interrupted(message: Any, arg: object) -> LocalTransactionState:
        seen.append(message.transaction_id)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        producer.send_in_transaction(MESSAGE, executer=interrupted)
    assert fake.ended == [unknown.transaction_id, *seen]
    producer.close()
    assert fake.ended == [unknown.transaction_id, *seen], "nothing runs any more"
    assert committed.transaction_id not in fake.ended


def test_closed_producer_hands_its_running_transactions_to_others() -> None:
    fake = Recording()
    producer = fake.transaction_producer("g", check_listener=answers)
    by_block(producer)
    blocks = [producer.transaction(MESSAGE) for _ in range(2)]
    names = [block.__enter__().transaction_id for block in blocks]
    assert fake.ended == []
    for _ in range(2):
        producer.close()
        assert fake.ended == names
    assert producer.checker_for("t", None) is None
    for send in (by_block, by_call):
        with pytest.raises(StoreClosedError, match=r"^the producer of group g is closed$"):
            send(producer)
    assert [one.transaction_id for one in fake.transactions()] == names


def test_close_ends_where_the_store_is_broken() -> None:
    fake = Recording()
    producer = fake.transaction_producer("g")
    names = [producer.transaction(MESSAGE).__enter__().transaction_id for _ in range(2)]
    fake.broken = True
    producer.close()
    assert fake.ended == names[:1]


def test_end_that_cannot_be_noted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = Recording()
    producer = fake.transaction_producer("g")
    fake.broken = True
    assert producer.send_in_transaction(MESSAGE, executer=lambda message, arg: UNKNOWN).error is None
    (record,) = [one for one in caplog.records if "noted" in one.getMessage()]
    fields = record.__dict__
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        "the end of a local transaction could not be noted",
    )
    assert (fields["group"], fields["reason"]) == ("g", "StoreIOError: the disk is gone")


def test_block_left_by_an_end_that_fails_may_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Recording()
    producer = fake.transaction_producer("g")

    def fails(*arguments: object) -> None:
        raise TxStoreError("not now")

    monkeypatch.setattr(producer, "_end", fails)
    with producer.transaction(MESSAGE) as tx:
        with pytest.raises(TxStoreError):
            tx.commit()
        assert fake.ended == [], "it still runs"
    assert fake.ended == [tx.transaction_id]


class Orders(TransactionListener):
    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        return LocalTransactionState(arg)

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        return ROLLBACK


def test_listener_runs_local_transactions_and_answers_their_checks() -> None:
    producer = FakeBroker().transaction_producer("g", Orders())
    for state in LocalTransactionState:
        assert producer.send_in_transaction(MESSAGE, state).local_transaction_state is state
    checker = producer.checker_for("t", None)
    assert checker is not None
    assert checker(MESSAGE) is ROLLBACK


def test_check_listener_answers_instead_of_the_listener() -> None:
    producer = FakeBroker().transaction_producer("g", Orders(), check_listener=answers)
    assert producer.send_in_transaction(MESSAGE, ROLLBACK).local_transaction_state is ROLLBACK
    assert producer.checker_for("t", None) is answers


def test_added_checker_is_announced_so_that_waiting_transactions_are_checked() -> None:
    fake = Recording()
    producer = fake.transaction_producer("g")
    assert fake.registered == [(producer, 0)]
    producer.add_checker(answers, tags="paid")
    assert fake.registered == [(producer, 0), (producer, producer.number)]
    assert producer.number == 1
    assert producer.checker_for("t", "paid") is answers
    assert producer.checker_for("t", None) is None


def test_callable_that_only_checks_runs_no_local_transaction() -> None:
    producer = FakeBroker().transaction_producer("g", check_listener=answers)
    assert producer.checker_for("any", None) is answers
    with pytest.raises(InvalidOptionError, match="has no listener that runs local transactions"):
        producer.send_in_transaction(MESSAGE)


def test_warning_of_missing_checks_says_what_helps(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker().transaction_producer("g").transaction(MESSAGE):
        pass
    (record,) = caplog.records
    assert record.getMessage() == (
        "a producer of group g sends transactions and answers no checks: after a crash, they stay pending until "
        "another producer of the group answers\nhint: a listener, check_listener=, database= or add_checker"
    )
    assert (record.name, record.__dict__["group"]) == ("txstore.producer", "g")


# Databases ------------------------------------------------------------------------------------------------------------


def test_database_gets_the_transaction_as_it_was_called() -> None:
    rows = Rows()
    producer = FakeBroker().transaction_producer("g", database=rows)
    session, select = object(), lambda queues, message, arg: 1
    assert producer.transaction(MESSAGE, session=session, queue_id=3, selector=select, arg=7) == "the block"  # type: ignore[call-overload]
    before = datetime(2020, 1, 1, tzinfo=UTC)
    producer.clean_database(before)
    assert rows.asked == [(producer, MESSAGE, session, 3, select, 7), ("clean", before)]
    checker = producer.checker_for("t", None)
    assert checker is not None
    assert checker(MESSAGE) is COMMIT


def test_producer_without_a_database_has_nothing_to_clean() -> None:
    FakeBroker().transaction_producer("g").clean_database(datetime(2020, 1, 1, tzinfo=UTC))


def made(**how: Any) -> TransactionProducer:
    return FakeBroker().transaction_producer("g", **how)


SESSION_HINT = 'hint: broker.transaction_producer("g", database=txstore.database.Database(engine)), without a listener'
# What is refused: the call, the option that it blames, and the whole text.
REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "an object that cannot listen": (
        lambda: made(listener=object()),
        "listener",
        "expected a transaction listener, got object\nhint: derive it from txstore.TransactionListener",
    ),
    "a listener and a database": (
        lambda: made(listener=commits, database=Rows()),
        "database",
        "listener and database are both given, and both would answer the checks\n"
        "hint: leave the listener out, and use producer.transaction(message, session=session)",
    ),
    "a checker and a database": (
        lambda: made(check_listener=answers, database=Rows()),
        "database",
        "listener and database are both given, and both would answer the checks\n"
        "hint: leave the listener out, and use producer.transaction(message, session=session)",
    ),
    "a path for a database": (
        lambda: made(database="orders.db"),
        "database",
        "expected a txstore.database.Database, got str\n"
        "hint: database=txstore.database.Database(engine), or of a path or URL",
    ),
    "a class for a database": (
        lambda: made(database=Rows),
        "database",
        "expected a txstore.database.Database, got Rows\n"
        "hint: database=txstore.database.Database(engine), or of a path or URL",
    ),
    "another checker than the database": (
        lambda: made(database=Rows()).add_checker(answers),
        "checker",
        "the producer of group g has a database, which answers its checks\n"
        "hint: use another producer group for transactions that another checker answers",
    ),
    "no listener": (
        lambda: made().send_in_transaction(MESSAGE),
        "listener",
        "the producer of group g has no listener that runs local transactions\n"
        "hint: give it a TransactionListener, pass executer=, or use `with producer.transaction(message)`",
    ),
    "an executer that cannot be called": (
        lambda: made().send_in_transaction(MESSAGE, executer=7),  # type: ignore[arg-type]
        "executer",
        "executer= must be a callable or a LocalTransactionExecuter, got int",
    ),
    "an executer and a database": (
        lambda: made(database=Rows()).send_in_transaction(MESSAGE, executer=commits),
        "executer",
        "the producer of group g has a database, so its local transactions need a session\n"
        "hint: with producer.transaction(message, session=session): …",
    ),
    "a database without a session": (
        lambda: made(database=Rows()).transaction(MESSAGE),
        "session",
        "the producer of group g has a database, so its transactions need a session\n"
        "hint: producer.transaction(message, session=session)",
    ),
    "a session without a checker": (
        lambda: made().transaction(MESSAGE, session=object()),  # type: ignore[call-overload]
        "session",
        f"session= is given, but the producer of group g has no checker and no database\n{SESSION_HINT}",
    ),
    "a session and a listener": (
        lambda: made(check_listener=answers).transaction(MESSAGE, session=object()),  # type: ignore[call-overload]
        "session",
        "session= is given, but the producer of group g has a listener that answers its checks and no database\n"
        f"{SESSION_HINT}",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_option_is_refused_with_what_is_right(what: str) -> None:
    call, option, text = REFUSED[what]
    with pytest.raises(InvalidOptionError, match=f"^{re.escape(text)}$") as caught:
        call()
    assert caught.value.option == option


def test_producer_is_shown_with_its_group_and_number() -> None:
    producer = FakeBroker().transaction_producer("g")
    assert (repr(producer), producer.group) == ("TransactionProducer(group='g', number=1)", "g")
    assert not producer.closed
    producer.close()
    assert producer.closed
