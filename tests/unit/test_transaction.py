"""Guards transactions: the database and the message change both or neither, with an answer, a late one or none."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.waiting import eventually
from txstore import (
    AlreadyEndedError,
    EmbeddedBroker,
    InvalidOptionError,
    LateEndError,
    LocalTransactionState,
    Message,
    StoreClosedError,
    TooManyPendingError,
    TransactionNotFoundError,
    TransactionState,
    WrongGroupError,
)

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
SHORT: dict[str, Any] = {"transaction_timeout": 0.02, "transaction_check_interval": 0.05}
ReadAll = Callable[[EmbeddedBroker, str], list[bytes]]


def checks_go_round(broker: EmbeddedBroker, times: int = 3) -> None:
    """Returns after so many checks of another transaction, which is younger than all others."""
    asked: list[str] = []

    def check(message: Any) -> LocalTransactionState:
        asked.append(message.transaction_id)
        return UNKNOWN

    witness = broker.transaction_producer("witness", check_listener=check)
    witness.send_in_transaction(Message("witness", b"w"), executer=lambda message, arg: UNKNOWN)
    eventually(lambda: len(asked) >= times)


def state_of(broker: EmbeddedBroker, transaction_id: str) -> TransactionState:
    return broker.transaction(transaction_id).state


@pytest.mark.parametrize(
    ("answer", "state", "visible"),
    [(COMMIT, "committed", [b"x"]), (ROLLBACK, "rolled_back", []), (UNKNOWN, "pending", [])],
)
def test_T2_T3_T4_the_answer_is_the_outcome(
    broker: EmbeddedBroker,
    scripted: Any,
    read_all: ReadAll,
    answer: LocalTransactionState,
    state: str,
    visible: list[bytes],
) -> None:
    listener = scripted(execute=answer)
    producer = broker.transaction_producer("g", listener)
    sent = producer.send_in_transaction(
        Message("t", b"x", tags="paid", keys=["k"], properties={"a": "b"}, flag=7), "arg"
    )
    assert sent.local_transaction_state is answer
    assert sent.error is None
    assert state_of(broker, sent.transaction_id) == state
    assert read_all(broker, "t") == visible
    message, arg = listener.executed[0]
    assert (message.transaction_id, message.topic, arg) == (sent.transaction_id, "t", "arg")


def test_T3_committed_message_equals_the_one_that_was_sent(broker: EmbeddedBroker, scripted: Any) -> None:
    producer = broker.transaction_producer("g", scripted(execute=COMMIT))
    sent = producer.send_in_transaction(
        Message("t", b"x", tags="paid", keys=["k"], properties={"a": "b"}, flag=7), queue_id=2
    )
    messages, _ = broker.read("t", 2, 0)
    assert len(messages) == 1
    final = messages[0]
    assert (final.body, final.tags, final.keys, final.flag) == (b"x", "paid", ("k",), 7)
    assert final.properties["a"] == "b"
    assert final.message_id == final.transaction_id == sent.transaction_id
    assert final.prepared_transaction_offset == sent.physical_offset
    assert final.transaction_type == "commit"
    assert "REAL_TOPIC" not in final.properties


def test_T1_half_message_is_invisible(broker: EmbeddedBroker, scripted: Any, read_all: ReadAll) -> None:
    seen: list[list[bytes]] = []
    producer = broker.transaction_producer("g", scripted())
    with producer.transaction(Message("t", b"x")):
        seen.append(read_all(broker, "t"))
    assert seen == [[]]
    for call in (
        lambda: broker.read("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0),
        lambda: broker.consumer("c", "RMQ_SYS_TRANS_HALF_TOPIC"),
        lambda: broker.query("RMQ_SYS_TRANS_HALF_TOPIC", "k"),
        lambda: broker.write_queues("RMQ_SYS_TRANS_HALF_TOPIC"),
    ):
        with pytest.raises(ValueError, match="RMQ_SYS_TRANS_HALF_TOPIC"):
            call()
    assert "RMQ_SYS_TRANS_HALF_TOPIC" not in broker.topics()


def test_block_commits_at_its_end_and_rolls_back_on_request(broker: EmbeddedBroker, read_all: ReadAll) -> None:
    producer = broker.transaction_producer("g")
    with producer.transaction(Message("t", b"kept")) as kept:
        assert kept.transaction_id == kept.message.transaction_id
    with producer.transaction(Message("t", b"dropped")) as dropped:
        dropped.rollback()
        dropped.rollback()
    with producer.transaction(Message("t", b"early")) as early:
        early.commit()
        assert b"early" in read_all(broker, "t")
    assert sorted(read_all(broker, "t")) == [b"early", b"kept"]
    assert [tx.state for tx in (kept, dropped, early)] == [COMMIT, ROLLBACK, COMMIT]


def test_exception_in_a_block_is_unknown_and_propagates(broker: EmbeddedBroker) -> None:
    producer = broker.transaction_producer("g")
    with pytest.raises(KeyError), producer.transaction(Message("t", b"x")) as tx:  # noqa: PT012
        assert broker.transactions()[0].running
        raise KeyError("database")
    assert tx.state is UNKNOWN
    waiting = broker.transactions()
    assert [one.transaction_id for one in waiting] == [tx.transaction_id]
    assert not waiting[0].running


def test_exception_after_a_rollback_leaves_it_rolled_back(broker: EmbeddedBroker) -> None:
    producer = broker.transaction_producer("g")
    with pytest.raises(KeyError), producer.transaction(Message("t", b"x")) as tx:  # noqa: PT012
        tx.rollback()
        raise KeyError("database")
    assert state_of(broker, tx.transaction_id) == "rolled_back"


def test_listener_that_raises_is_unknown_and_its_error_is_kept(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(message: Any, arg: Any) -> LocalTransactionState:
        raise RuntimeError("no database")

    producer = broker.transaction_producer("g")
    with caplog.at_level(logging.WARNING, "txstore.producer"):
        sent = producer.send_in_transaction(Message("t", b"secret body"), executer=raises)
    assert sent.local_transaction_state is UNKNOWN
    assert sent.error == "RuntimeError: no database"
    assert caplog.records[-1].__dict__["transaction_id"] == sent.transaction_id
    assert "secret body" not in caplog.text
    none = producer.send_in_transaction(Message("t", b"y"), executer=lambda message, arg: None)  # type: ignore[arg-type]
    assert none.local_transaction_state is UNKNOWN
    assert "NoneType" in str(none.error)


def test_interrupt_in_a_listener_propagates_and_leaves_it_to_a_check(broker: EmbeddedBroker) -> None:
    def interrupted(message: Any, arg: Any) -> LocalTransactionState:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broker.transaction_producer("g").send_in_transaction(Message("t", b"x"), executer=interrupted)
    assert [one.running for one in broker.transactions()] == [False]


def test_end_that_fails_is_reported_and_left_to_a_check(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> Any:
        raise StoreClosedError("as if the disk were full")

    monkeypatch.setattr(broker, "end", full)
    producer = broker.transaction_producer("g")
    sent = producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: COMMIT)
    assert sent.local_transaction_state is COMMIT
    assert sent.error == "StoreClosedError: as if the disk were full"
    with producer.transaction(Message("t", b"y")) as tx:
        pass
    assert tx.error == "StoreClosedError: as if the disk were full"
    with pytest.raises(StoreClosedError), producer.transaction(Message("t", b"z")) as loud:
        loud.commit()
    assert [one.running for one in broker.transactions()] == [False, False, False]


def test_T6_second_end_is_success(broker: EmbeddedBroker, scripted: Any, read_all: ReadAll) -> None:
    producer = broker.transaction_producer("g", scripted())
    sent = producer.send_in_transaction(Message("t", b"x"))
    assert not broker.end_transaction(sent.transaction_id, COMMIT).already
    end = broker.stat().max_physical_offset
    for transaction in (sent.transaction_id, sent.send_result):
        again = broker.end_transaction(transaction, COMMIT)
        assert again.outcome is TransactionState.COMMITTED
        assert again.already
    assert broker.stat().max_physical_offset == end
    assert read_all(broker, "t") == [b"x"]


def test_T6_another_end_is_an_error_and_writes_nothing(broker: EmbeddedBroker, scripted: Any) -> None:
    producer = broker.transaction_producer("g", scripted())
    sent = producer.send_in_transaction(Message("t", b"x"))
    broker.end_transaction(sent.transaction_id, ROLLBACK)
    end = broker.stat().max_physical_offset
    with pytest.raises(AlreadyEndedError) as caught:
        broker.end_transaction(sent.transaction_id, COMMIT)
    assert caught.value.outcome is TransactionState.ROLLED_BACK
    with pytest.raises(AlreadyEndedError):
        broker.discard(sent.transaction_id)
    assert broker.stat().max_physical_offset == end


def test_T6_unknown_transaction_wrong_group_and_unknown_end_are_errors(broker: EmbeddedBroker, scripted: Any) -> None:
    producer = broker.transaction_producer("g", scripted())
    sent = producer.send_in_transaction(Message("t", b"x"))
    with pytest.raises(WrongGroupError):
        broker.end_transaction(sent.transaction_id, COMMIT, producer_group="other")
    with pytest.raises(TransactionNotFoundError):
        broker.end_transaction("0" * 32, COMMIT)
    with pytest.raises(InvalidOptionError):
        broker.end_transaction(sent.transaction_id, UNKNOWN)
    assert state_of(broker, sent.transaction_id) == "pending"


def test_T7_block_whose_transaction_was_ended_otherwise_raises(broker: EmbeddedBroker, read_all: ReadAll) -> None:
    producer = broker.transaction_producer("g")
    with pytest.raises(AlreadyEndedError), producer.transaction(Message("t", b"x")) as tx:
        broker.end_transaction(tx.transaction_id, ROLLBACK)
    assert read_all(broker, "t") == []


def test_T12_resent_half_is_one_transaction(broker: EmbeddedBroker, scripted: Any) -> None:
    producer = broker.transaction_producer("g", scripted())
    first = producer.send_in_transaction(Message("t", b"x"))
    second = producer.send_in_transaction(first.message)
    assert second.transaction_id == first.transaction_id
    assert second.queue_offset == first.queue_offset
    assert len(broker.transactions()) == 1


def test_listener_does_not_run_when_too_many_are_pending(open_store: Any, scripted: Any) -> None:
    listener = scripted()
    producer = open_store(pending_transactions_max=1).transaction_producer("g", listener)
    producer.send_in_transaction(Message("t", b"1"))
    with pytest.raises(TooManyPendingError):
        producer.send_in_transaction(Message("t", b"2"))
    assert len(listener.executed) == 1


def test_T11_owner_is_asked_first(open_store: Any, scripted: Any, read_all: ReadAll) -> None:
    broker = open_store(**SHORT)
    other, home = scripted(check=ROLLBACK), scripted(check=COMMIT)
    broker.transaction_producer("g", other)
    sent = broker.transaction_producer("g", home).send_in_transaction(Message("t", b"x"))
    eventually(lambda: state_of(broker, sent.transaction_id) == "committed")
    assert (home.checked, other.checked) == ([sent.transaction_id], [])
    assert read_all(broker, "t") == [b"x"]
    # The end is in the log a moment before the answer is in memory.
    eventually(lambda: len(broker.transaction(sent.transaction_id).events) == 4)
    history = broker.transaction(sent.transaction_id)
    assert [event.kind for event in history.events] == ["prepared", "checked", "committed", "op"]
    assert "COMMIT" in history.explain()


def test_T11_another_producer_of_the_group_is_asked_when_the_owner_is_gone(open_store: Any, scripted: Any) -> None:
    broker = open_store(**SHORT)
    other = scripted(check=ROLLBACK)
    broker.transaction_producer("g", other)
    with broker.transaction_producer("g", scripted()) as home:
        sent = home.send_in_transaction(Message("t", b"x"))
    eventually(lambda: state_of(broker, sent.transaction_id) == "rolled_back")
    assert other.checked == [sent.transaction_id]


def test_T11_without_a_producer_a_transaction_waits_and_no_check_is_counted(open_store: Any, scripted: Any) -> None:
    broker = open_store(transaction_timeout=0.02, transaction_check_interval=3600)
    with broker.transaction_producer("g") as home:  # Without a checker, so that it is never asked.
        sent = home.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
    checks_go_round(broker, times=1)
    waiting = broker.transactions(group="g")[0]
    assert (waiting.checks, waiting.owner) == (0, None)
    assert "no live producer of group g" in waiting.why
    broker.transaction_producer("another", scripted(check=COMMIT))
    broker.transaction_producer("g", scripted(check=COMMIT))
    eventually(lambda: state_of(broker, sent.transaction_id) == "committed")


def test_T11_running_transaction_is_not_checked(open_store: Any, scripted: Any) -> None:
    broker = open_store(**SHORT)
    listener = scripted(check=ROLLBACK)
    producer = broker.transaction_producer("g", listener)
    with producer.transaction(Message("t", b"x")) as tx:
        checks_go_round(broker)
        assert listener.checked == []
        waiting = broker.transactions(group="g")[0]
        assert waiting.running
        assert "still runs in TransactionProducer(group='g'" in waiting.why
    assert state_of(broker, tx.transaction_id) == "committed"


def test_T11_transaction_of_an_interrupted_producer_is_checked(open_store: Any, scripted: Any) -> None:
    broker = open_store(**SHORT)
    gone = 4711  # The state that an interrupt leaves, between the half message and the note that it runs.
    broker.write_queues("t")
    half = broker.store.prepare(Message("t", b"x"), 0, "g", gone)
    broker.transaction_producer("g", scripted(check=COMMIT))
    eventually(lambda: state_of(broker, half.message_id) == "committed")


def test_T11_transaction_is_discarded_once_after_the_maximum(open_store: Any, scripted: Any, read_all: ReadAll) -> None:
    broker = open_store(**SHORT, transaction_check_max=3)
    listener = scripted()
    sent = broker.transaction_producer("g", listener).send_in_transaction(Message("t", b"x"))
    eventually(lambda: state_of(broker, sent.transaction_id) == "discarded")
    checks_go_round(broker)
    assert listener.checked == [sent.transaction_id] * 3
    trace = broker.transaction(sent.transaction_id)
    assert len(trace.discards) == 1
    assert "resume" in trace.explain()
    assert read_all(broker, "t") == []


def test_T11_hanging_listener_delays_no_other(open_store: Any, scripted: Any) -> None:
    broker = open_store(**SHORT, transaction_check_time_limit=0.1)
    release = threading.Event()

    def hangs(message: Any) -> None:
        release.wait(30)

    slow = broker.transaction_producer("slow", scripted(), check_listener=hangs)
    slow_ones = [slow.send_in_transaction(Message("t", b"x")) for _ in range(20)]
    fast = broker.transaction_producer("fast", scripted(check=COMMIT))
    sent = fast.send_in_transaction(Message("t", b"y"))
    eventually(lambda: state_of(broker, sent.transaction_id) == "committed")
    asked = [one.transaction_id for one in slow_ones]

    def reasons() -> list[str]:
        return [event.text for name in asked for event in broker.transaction(name).events if event.kind == "checked"]

    eventually(lambda: any("no answer within" in text for text in reasons()))
    release.set()


def test_T14_checks_write_nothing(open_store: Any, scripted: Any) -> None:
    broker = open_store(**SHORT, transaction_check_max=1000)
    listener = scripted()
    broker.transaction_producer("g", listener).send_in_transaction(Message("t", b"x"))
    end = broker.stat().max_physical_offset
    eventually(lambda: len(listener.checked) >= 3)
    assert broker.stat().max_physical_offset == end


def test_message_may_have_a_longer_immunity_time(open_store: Any, scripted: Any) -> None:
    broker = open_store(**SHORT)
    listener = scripted(check=COMMIT)
    immune = Message("t", b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    broker.transaction_producer("g", listener).send_in_transaction(immune)
    checks_go_round(broker)
    assert listener.checked == []
    assert "immunity" in broker.transactions(group="g")[0].why


def test_discarded_transaction_is_resumed_and_committed(
    broker: EmbeddedBroker, scripted: Any, read_all: ReadAll
) -> None:
    sent = broker.transaction_producer("g", scripted()).send_in_transaction(Message("t", b"x"))
    assert broker.discard(sent.transaction_id).outcome is TransactionState.DISCARDED
    assert broker.discard(sent.send_result).already
    resumed = broker.resume(sent.transaction_id)
    assert resumed.transaction_id == sent.transaction_id
    with pytest.raises(AlreadyEndedError):
        broker.end_transaction(sent.send_result, COMMIT)
    assert broker.end_transaction(sent.transaction_id, COMMIT).outcome == "committed"
    assert read_all(broker, "t") == [b"x"]


def test_late_end_is_accepted(open_store: Any, scripted: Any, read_all: ReadAll) -> None:
    broker = open_store(**SHORT)
    producer = broker.transaction_producer("g", scripted())
    with producer.transaction(Message("t", b"x")):
        eventually(lambda: broker.transactions()[0].age > timedelta(seconds=SHORT["transaction_timeout"]))
    assert read_all(broker, "t") == [b"x"]


def test_late_end_is_refused_with_rocketmqs_rule(open_store: Any) -> None:
    broker = open_store(reject_late_end=True)
    late = Message("t", b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
    with broker.transaction_producer("g").transaction(late) as tx:
        eventually(lambda: broker.transactions()[0].age > timedelta(seconds=1))
        with pytest.raises(LateEndError):
            tx.commit()
    assert "LateEndError" in str(tx.error)
    assert state_of(broker, tx.transaction_id) == "pending"


def test_T5_outcomes_and_pending_transactions_survive_a_restart(
    open_store: Any, scripted: Any, read_all: ReadAll
) -> None:
    with open_store(flush_disk_type="SYNC_FLUSH", **SHORT, transaction_check_max=10_000) as broker:
        producer = broker.transaction_producer("g", scripted(execute=COMMIT))
        done = producer.send_in_transaction(Message("t", b"done"))
        with pytest.raises(KeyError), producer.transaction(Message("t", b"open")) as tx:
            raise KeyError("database")
    broker = open_store(**SHORT)
    assert state_of(broker, done.transaction_id) == "committed"
    assert state_of(broker, tx.transaction_id) == "pending"
    with pytest.raises(AlreadyEndedError):
        broker.end_transaction(done.transaction_id, ROLLBACK)
    broker.transaction_producer("g", scripted(check=COMMIT))
    eventually(lambda: state_of(broker, tx.transaction_id) == "committed")
    assert sorted(read_all(broker, "t")) == [b"done", b"open"]


def test_T5_durability_at_return_with_the_default_settings(open_store: Any) -> None:
    # No background sync covers what a call should have synced itself.
    broker = open_store(flush_interval_commit_log=3600)

    def is_durable() -> bool:
        stat = broker.stat()
        return bool(stat.durable_physical_offset == stat.max_physical_offset)

    producer = broker.transaction_producer("g", check_listener=lambda _: UNKNOWN)
    with producer.transaction(Message("t", b"1")) as tx:
        assert is_durable(), "the half message, before the local transaction begins"
    assert state_of(broker, tx.transaction_id) == "committed"
    assert not is_durable(), "a producer's end, which a check would repeat"
    with pytest.raises(AlreadyEndedError):
        broker.end_transaction(tx.transaction_id, ROLLBACK)
    assert is_durable(), "an outcome that an operator was told"
    broker.producer("g").send(Message("t", b"2"))
    assert not is_durable(), "an ordinary message"
    for number, state in enumerate((COMMIT, ROLLBACK)):
        half = broker.prepare(Message("t", b"%d" % number), 0, "g")
        broker.end_transaction(half.message_id, state)
        assert is_durable(), "an end by hand"
    half = broker.prepare(Message("t", b"3"), 0, "g")
    broker.discard(half.message_id)
    assert is_durable(), "a discard"
    broker.resume(half.message_id)
    assert is_durable(), "a resume"


def test_T5_half_is_not_synced_with_rocketmqs_default(open_store: Any) -> None:
    broker = open_store(flush_interval_commit_log=3600, transaction_flush_disk_type="ASYNC_FLUSH")
    broker.prepare(Message("t", b"1"), 0, "g")
    assert broker.stat().durable_physical_offset < broker.stat().max_physical_offset


def test_transactions_are_listed_by_group_topic_age_and_state(broker: EmbeddedBroker, scripted: Any) -> None:
    a = broker.transaction_producer("a", scripted())
    b = broker.transaction_producer("b", scripted(execute=ROLLBACK))
    first = a.send_in_transaction(Message("t", b"1"))
    second = a.send_in_transaction(Message("u", b"2"))
    b.send_in_transaction(Message("t", b"3"))
    assert [one.transaction_id for one in broker.transactions()] == [first.transaction_id, second.transaction_id]
    assert [one.transaction_id for one in broker.transactions(topic="u")] == [second.transaction_id]
    assert broker.transactions(group="b") == []
    assert broker.transactions(older_than=3600) == []
    assert len(broker.transactions(limit=1)) == 1
    assert [row.topic for row in broker.transactions("rolled_back")] == ["t"]
    assert len(broker.transactions(None)) == 3
    with pytest.raises(InvalidOptionError):
        broker.transactions("done")  # type: ignore[call-overload]
    one = broker.transactions()[0]
    assert (one.checks, one.producer_group, one.topic, one.running) == (0, "a", "t", False)
    assert one.owner == repr(a)
    assert one.next_check is not None
    assert "first checked" in one.why


def test_threads_share_a_producer(broker: EmbeddedBroker, scripted: Any, read_all: ReadAll) -> None:
    producer = broker.transaction_producer("g", scripted(execute=COMMIT))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(25):
                producer.send_in_transaction(Message("t", f"{number}.{step}".encode()))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(read_all(broker, "t")) == sorted(f"{n}.{s}".encode() for n in range(8) for s in range(25))
