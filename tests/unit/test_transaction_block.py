"""Guards what a transaction block shows before, in and after it, and that it tells its broker an end exactly once."""

import logging
import re
from typing import Any

import pytest

from txstore import EmbeddedBroker, EndResult, InvalidOptionError, LocalTransactionState, Message
from txstore.errors import DiskFullError
from txstore.producer.local_transaction import LocalTransaction, error_text
from txstore.testing import FakeBroker

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
MESSAGE = Message("t", b"x")


class Told(FakeBroker):
    """A broker that records the ends that it is told, and refuses as many of them as `full` says."""

    def __init__(self, full: int = 0) -> None:
        super().__init__()
        self.told: list[LocalTransactionState] = []
        self.full = full
        self.really_end, self.end = self.end, self.tell

    def tell(self, half: Any, state: LocalTransactionState, group: str) -> EndResult:
        self.told.append(state)
        if self.full > 0:
            self.full -= 1
            raise DiskFullError("full")
        return self.really_end(half, state, group)


def record_of(caplog: pytest.LogCaptureFixture, text: str) -> dict[str, Any]:
    """The fields of the one line of the log that is the text."""
    (record,) = [record for record in caplog.records if record.getMessage() == text]
    return record.__dict__


def test_block_before_it_is_entered_has_its_message_and_nothing_else() -> None:
    tx = FakeBroker().transaction_producer("g").transaction(MESSAGE)
    assert (tx.message, tx.state, tx.error) == (MESSAGE, UNKNOWN, None)
    told = (
        "the transaction has not begun\nhint: use it as `with producer.transaction(message) as tx`, or `async with` "
        "where the producer is asyncio's"
    )
    for too_early in (lambda: tx.transaction_id, lambda: tx.send_result, tx.commit, tx.rollback):
        with pytest.raises(InvalidOptionError, match=f"^{re.escape(told)}$"):
            too_early()


def test_block_shows_its_half_message() -> None:
    with FakeBroker().transaction_producer("g").transaction(MESSAGE) as tx:
        half = tx.send_result
        assert half.message_id == tx.transaction_id == tx.message.transaction_id
        assert (tx.state, tx.error) == (UNKNOWN, None)
    assert tx.send_result is half
    assert (tx.state, tx.error) == (COMMIT, None)


def test_block_is_entered_once() -> None:
    fake = FakeBroker()
    with fake.transaction_producer("g").transaction(MESSAGE) as tx:
        with pytest.raises(
            InvalidOptionError, match=r"^the transaction has begun already\nhint: one block is one tran"
        ):
            tx.__enter__()
        assert [one.transaction_id for one in fake.transactions()] == [tx.transaction_id]
    with pytest.raises(InvalidOptionError, match=r"already\nhint: one block is one transaction$"):
        tx.__enter__()


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("raises", [False, True])
def test_block_that_was_ended_inside_tells_it_once(state: LocalTransactionState, raises: bool) -> None:
    broker = Told()
    tx = broker.transaction_producer("g").transaction(MESSAGE)
    try:
        with tx:
            (tx.commit if state is COMMIT else tx.rollback)()
            if raises:
                raise KeyError("afterwards")
    except KeyError:
        pass
    assert broker.told == [state]
    assert (tx.state, tx.error) == (state, None)


def test_exception_in_a_block_tells_nothing_and_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    broker = Told()
    with (
        caplog.at_level(logging.INFO, "txstore.producer"),
        pytest.raises(KeyError),
        broker.transaction_producer("g").transaction(MESSAGE) as tx,
    ):
        raise KeyError("secret")
    assert broker.told == []
    assert (tx.state, tx.error) == (UNKNOWN, "KeyError: 'secret'")
    fields = record_of(caplog, "transaction left unknown by an exception")
    assert (fields["transaction_id"], fields["group"], fields["reason"]) == (tx.transaction_id, "g", "KeyError")
    assert fields["half_queue_offset"] == tx.send_result.queue_offset


def test_exception_after_a_commit_that_failed_leaves_it_unknown() -> None:
    broker = Told(full=1)
    with (
        pytest.raises(DiskFullError),
        broker.transaction_producer("g").transaction(MESSAGE) as tx,
    ):
        tx.commit()
    assert broker.told == [COMMIT]
    assert (tx.state, tx.error) == (UNKNOWN, "DiskFullError: full")
    local = LocalTransaction("g", tx.send_result, MESSAGE)
    local.wanted = COMMIT
    local.left_by(KeyError("x"))
    assert local.result().local_transaction_state is UNKNOWN


def test_end_that_fails_when_the_block_is_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    broker = Told(full=1)
    with broker.transaction_producer("g").transaction(MESSAGE) as tx:
        pass
    assert (tx.state, tx.error) == (UNKNOWN, "DiskFullError: full")
    told = f"transaction {tx.transaction_id} of group g: transaction could not be ended: DiskFullError: full"
    fields = record_of(caplog, told)
    assert (fields["reason"], fields["state"]) == ("DiskFullError: full", "COMMIT")


def test_local_transaction_still_runs_after_an_end_that_failed_inside(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise DiskFullError("full")

    monkeypatch.setattr(broker, "end", full)
    producer = broker.transaction_producer("g")
    with producer.transaction(MESSAGE) as tx:
        with pytest.raises(DiskFullError):
            tx.commit()
        assert [one.running for one in broker.transactions()] == [True]
    assert [one.running for one in broker.transactions()] == [False]


def test_exception_in_a_local_transaction_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    def fails(message: object, arg: object) -> LocalTransactionState:
        raise RuntimeError("no database")

    sent = FakeBroker().transaction_producer("g").send_in_transaction(MESSAGE, executer=fails)
    fields = record_of(caplog, f"transaction {sent.transaction_id}: local transaction raised")
    assert fields["reason"] == "RuntimeError: no database"


def test_answer_that_is_not_a_state_is_logged_and_blames_the_executer(caplog: pytest.LogCaptureFixture) -> None:
    producer = FakeBroker().transaction_producer("g")
    result = producer.send_in_transaction(MESSAGE, executer=lambda message, arg: 1)  # type: ignore[arg-type]
    assert isinstance(result.exception, InvalidOptionError)
    assert result.exception.option == "executer"
    assert result.error is not None
    assert result.error.startswith("the local transaction returned ")
    assert str(result.exception) == f"{result.error}\nhint: return LocalTransactionState.COMMIT, ROLLBACK or UNKNOWN"
    told = f"transaction {result.transaction_id} of group g: local transaction returned no state: {result.error}"
    assert record_of(caplog, told)["reason"] == result.error


def test_cleared_delay_level_warns_at_the_line_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    producer = FakeBroker().transaction_producer("g")
    delayed = Message("t", b"x", delay_level=3)
    told = (
        "a transactional message cannot be delayed: its delay level is cleared\nhint: broker.producer(group, "
        "database=database).send(message, session=session) delays it from the commit on"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(told)}$") as warned:  # noqa: PT031
        producer.send_in_transaction(delayed, executer=lambda message, arg: COMMIT)
        with producer.transaction(delayed):
            pass
    assert [one.filename for one in warned] == [__file__, __file__]
    logged = [record.__dict__ for record in caplog.records if record.getMessage() == "delay level cleared"]
    assert [(fields["topic"], fields["group"], fields["delay_level"]) for fields in logged] == [("t", "g", 3)] * 2


def test_error_without_a_text_is_named_by_its_class() -> None:
    assert [error_text(error) for error in (KeyError(), ValueError("x"))] == ["KeyError", "ValueError: x"]
