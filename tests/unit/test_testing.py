"""Guards txstore.testing: a broker in memory whose time and crashes are the test's, for the tests of other programs."""

import contextlib
import functools
import itertools
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from txstore import (
    ConsumeResult,
    InvalidOptionError,
    LocalTransactionState,
    Message,
    ReceivedMessage,
    StoreClosedError,
    StoreIOError,
    TransactionMessage,
    TransactionProducer,
    TxStoreError,
)
from txstore.database import Database
from txstore.testing import CrashPoint, FakeBroker, ManualClock, SimulatedCrash

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
TRANSACTION_POINTS = [CrashPoint.BEFORE_HALF, CrashPoint.AFTER_HALF, CrashPoint.BEFORE_END, CrashPoint.AFTER_END]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close_all()


def bodies(broker: FakeBroker, topic: str = "t") -> list[bytes]:
    return [message.body for message in broker.messages(topic)]


class Service:
    """A program as users write it: orders in its own database, and a message for each."""

    def __init__(self, broker: FakeBroker, file: Path) -> None:
        self.file = file
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS orders (id PRIMARY KEY, transaction_id UNIQUE)")
        self.producer: TransactionProducer = broker.transaction_producer("service", check_listener=self.check)

    def order(self, number: int) -> None:
        message = Message("orders", str(number).encode())
        with self.producer.transaction(message) as tx, closing(sqlite3.connect(self.file)) as db, db:
            db.execute("INSERT INTO orders VALUES (?, ?)", (number, tx.transaction_id))

    def check(self, message: TransactionMessage) -> LocalTransactionState:
        with closing(sqlite3.connect(self.file)) as db:
            query = "SELECT 1 FROM orders WHERE transaction_id = ?"
            found = db.execute(query, (message.transaction_id,)).fetchone()
        return COMMIT if found else ROLLBACK

    def orders(self) -> list[bytes]:
        with closing(sqlite3.connect(self.file)) as db:
            return [str(number).encode() for (number,) in db.execute("SELECT id FROM orders")]


# Crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_order_and_message_agree_after_a_crash_at_each_point(
    broker: FakeBroker, tmp_path: Path, point: CrashPoint, power_loss: bool
) -> None:
    service = Service(broker, tmp_path / "orders.db")
    service.order(1)
    broker.crash_at(point, power_loss=power_loss)
    with pytest.raises(SimulatedCrash, match=point):
        service.order(2)
    broker = broker.reopen()
    service = Service(broker, tmp_path / "orders.db")
    broker.clock.advance(6)
    broker.run_checks()
    assert broker.transactions() == []
    assert set(bodies(broker, "orders")) == set(service.orders())
    committed = point in (CrashPoint.BEFORE_END, CrashPoint.AFTER_END)
    assert (b"2" in service.orders()) is committed


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_SEND, CrashPoint.AFTER_SEND])
@pytest.mark.parametrize("batch", [False, True])
def test_crash_at_a_send(broker: FakeBroker, point: CrashPoint, batch: bool) -> None:
    producer = broker.producer("p")
    broker.crash_at(point, nth=2)
    producer.send(Message("t", b"1"))
    send = functools.partial(producer.send, Message("t", b"2"))
    send_two = functools.partial(producer.send_batch, [Message("t", b"2"), Message("t", b"3")])
    with pytest.raises(SimulatedCrash):
        (send_two if batch else send)()
    stored = [] if point is CrashPoint.BEFORE_SEND else [b"2", b"3"] if batch else [b"2"]
    assert bodies(broker.reopen()) == [b"1", *stored]


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_ACKNOWLEDGE, CrashPoint.AFTER_ACKNOWLEDGE])
def test_crash_at_an_acknowledgement_delivers_again(broker: FakeBroker, point: CrashPoint) -> None:
    """Also after it: offsets reach the disk every five seconds."""
    broker.producer("p").send(Message("t", b"1"))
    broker.crash_at(point)
    seen: list[bytes] = []

    def consume() -> None:
        with broker.consumer("c", "t") as consumer:
            seen.extend(message.body for message in consumer)

    with pytest.raises(SimulatedCrash):
        consume()
    with broker.reopen().consumer("c", "t") as consumer:
        seen.extend(message.body for message in consumer.poll(9))
    assert seen == [b"1", b"1"]


def test_offsets_survive_a_crash_after_their_interval(broker: FakeBroker) -> None:
    broker.producer("p").send(Message("t", b"1"))
    with broker.consumer("c", "t") as consumer:
        assert len(consumer.poll()) == 1
        consumer.acknowledge()
        broker.clock.advance(5)
        broker.crash(power_loss=True)
    with broker.reopen().consumer("c", "t") as consumer:
        assert consumer.poll() == []


@pytest.mark.parametrize(("power_loss", "left"), [(False, [b"synced", b"written"]), (True, [b"synced"])])
def test_kill_keeps_what_was_written_and_power_loss_what_was_synced(
    broker: FakeBroker, power_loss: bool, left: list[bytes]
) -> None:
    producer = broker.producer("p")
    producer.send(Message("t", b"synced"))
    broker.clock.advance(0.5)  # flush_interval_commit_log
    producer.send(Message("t", b"written"))
    broker.crash(power_loss=power_loss)
    assert bodies(broker.reopen()) == left


def test_what_a_killed_program_wrote_is_synced_by_the_next_opening(broker: FakeBroker) -> None:
    broker.producer("p").send(Message("t", b"1"))
    broker.crash()
    killed = broker.reopen()
    killed.producer("p").send(Message("t", b"2"))
    killed.crash(power_loss=True)
    assert bodies(killed.reopen()) == [b"1"]


def test_power_loss_with_a_seed_keeps_some_of_the_rest_and_repeats() -> None:
    def survivors(seed: int) -> tuple[bytes, ...]:
        broker = FakeBroker()
        producer = broker.producer("p")
        for number in range(8):
            producer.send(Message("t", str(number).encode()), queue_id=0)
        broker.crash(power_loss=True, seed=seed)
        with broker.reopen() as reopened:
            return tuple(bodies(reopened))

    seen = {seed: survivors(seed) for seed in range(12)}
    assert {seed: survivors(seed) for seed in range(12)} == seen
    assert len(set(seen.values())) > 1
    assert all(kept == tuple(b"%d" % number for number in range(len(kept))) for kept in seen.values())


@pytest.mark.parametrize("power_loss", [False, True])
def test_nothing_acknowledged_is_lost_if_threads_send_during_the_crash(power_loss: bool) -> None:
    """A call that is not over is either done before the crash, or fails."""

    def work(broker: FakeBroker, name: str, acknowledged: list[bytes]) -> None:
        with contextlib.suppress(TxStoreError):
            producer = broker.producer("p")
            for number in itertools.count():
                body = f"{name} {number}".encode()
                producer.send(Message("t", body))
                acknowledged.append(body)

    for seed in range(24):
        broker, acknowledged = FakeBroker(flush_disk_type="SYNC_FLUSH"), list[bytes]()
        threads = [threading.Thread(target=work, args=(broker, name, acknowledged)) for name in "abc"]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 3 * seed:
            pass
        broker.crash(power_loss=power_loss, seed=seed)
        for thread in threads:
            thread.join()
        with broker.reopen() as reopened:
            assert set(acknowledged) <= set(bodies(reopened)), f"seed {seed}"


def test_crashed_broker_writes_nothing_more(broker: FakeBroker) -> None:
    producer, consumer = broker.producer("p"), broker.consumer("c", "t")
    block = broker.transaction_producer("g").transaction(Message("t", b"x"))
    block.__enter__()
    broker.crash()
    assert broker.closed
    assert repr(broker) == "FakeBroker(crashed)"
    for call in (lambda: producer.send(Message("t", b"x")), lambda: consumer.poll(timeout=1), broker.run_checks):
        with pytest.raises(StoreClosedError):
            call()
    with pytest.raises(StoreClosedError):
        broker.crash()
    block.__exit__(None, None, None)
    consumer.close()
    broker.close()
    reopened = broker.reopen()
    assert bodies(reopened) == []
    assert len(reopened.transactions()) == 1


def test_crash_passes_the_handlers_of_a_program(broker: FakeBroker) -> None:
    """`except Exception` runs in no process that was killed."""
    broker.crash_at(CrashPoint.AFTER_HALF)
    producer, handled = broker.transaction_producer("g"), list[Exception]()

    def program() -> None:
        try:
            producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: COMMIT)
        except Exception as error:
            handled.append(error)

    with pytest.raises(SimulatedCrash):
        program()
    assert handled == []


def test_crash_in_a_check_reaches_the_test_and_the_check_is_asked_again(broker: FakeBroker) -> None:
    def check(message: TransactionMessage) -> LocalTransactionState:
        broker.producer("p").send(Message("log", b"checked"))
        return COMMIT

    broker.transaction_producer("g", check_listener=check).send_in_transaction(
        Message("t", b"x"), executer=lambda message, arg: UNKNOWN
    )
    broker.clock.advance(6)
    broker.crash_at(CrashPoint.AFTER_SEND)
    with pytest.raises(SimulatedCrash):
        broker.run_checks()
    reopened = broker.reopen()
    reopened.transaction_producer("g", check_listener=lambda message: COMMIT)
    reopened.clock.advance(6)
    assert reopened.run_checks() == 1
    assert (bodies(reopened), bodies(reopened, "log")) == ([b"x"], [b"checked"])


def test_wrong_plans_and_orders_are_refused(broker: FakeBroker) -> None:
    with pytest.raises(InvalidOptionError, match=r"unknown crash point 'never', expected one of before_send, "):
        broker.crash_at("never")
    with pytest.raises(InvalidOptionError, match="nth must be 1 or more, got 0"):
        broker.crash_at("after_half", nth=0)
    with pytest.raises(InvalidOptionError, match=r"the broker is open\nhint: call crash\(\)"):
        broker.reopen()
    with pytest.raises(InvalidOptionError, match="unknown option flush_disk_typ"):
        FakeBroker(flush_disk_typ="SYNC_FLUSH")  # type: ignore[call-arg]
    with pytest.raises(StoreIOError, match="a store in memory has no socket"):
        broker.listen()


def test_closed_broker_opens_again_with_its_messages_and_options() -> None:
    broker = FakeBroker(default_topic_queue_nums=2, transaction_timeout=1)
    broker.producer("p").send(Message("t", b"1"))
    broker.close()
    with broker.reopen() as reopened:
        assert bodies(reopened) == [b"1"]
        assert reopened.open_report.clean
        assert reopened.clock is broker.clock
        assert reopened.config == broker.config
        assert list(reopened.write_queues("u")) == [0, 1]


def wait_for_messages(broker: FakeBroker, count: int) -> list[bytes]:
    for _ in range(30_000):
        if len(found := bodies(broker)) >= count:
            break
        time.sleep(0.001)
    return sorted(found)


def test_rows_of_an_outbox_are_forwarded_also_after_a_crash(broker: FakeBroker, tmp_path: Path) -> None:
    """Two brokers in memory are two logs, so that rows of one are not forwarded to the other."""
    file = tmp_path / "orders.db"
    Database(file).create_table()
    producer = broker.producer("p", database=Database(file))
    with closing(sqlite3.connect(file)) as session:
        producer.send(Message("t", b"1"), session=session)
        session.commit()
        assert wait_for_messages(broker, 1) == [b"1"]
        broker.crash(power_loss=True)
        producer.send(Message("t", b"2"), session=session)
        session.commit()
    with FakeBroker() as other:
        assert other.store.store_id != broker.store.store_id
    reopened = broker.reopen()
    assert reopened.store.store_id == broker.store.store_id
    reopened.producer("p", database=Database(file))
    assert wait_for_messages(reopened, 2) == [b"1", b"2"]


# Checks ---------------------------------------------------------------------------------------------------------------


def test_check_is_due_by_the_clock_and_made_in_the_calling_thread(broker: FakeBroker) -> None:
    threads: list[int] = []

    def check(message: TransactionMessage) -> LocalTransactionState:
        threads.append(threading.get_ident())
        return UNKNOWN if len(threads) < 2 else COMMIT

    producer = broker.transaction_producer("g", check_listener=check)
    sent = producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
    asked = [broker.run_checks()]
    for seconds in (5.9, 0.2, 29.8, 0.3):  # transaction_timeout, then transaction_check_interval
        broker.clock.advance(seconds)
        asked.append(broker.run_checks())
    assert asked == [0, 0, 1, 0, 1]
    assert set(threads) == {threading.get_ident()}
    assert broker.transaction(sent.transaction_id).state == "committed"
    assert bodies(broker) == [b"x"]


def test_local_transaction_that_runs_is_not_checked(broker: FakeBroker) -> None:
    producer = broker.transaction_producer("g", check_listener=lambda message: COMMIT)
    with producer.transaction(Message("t", b"x")) as tx:
        broker.clock.advance(600)
        assert broker.run_checks() == 0
        tx.rollback()


def test_check_that_raises_is_unknown_and_the_last_one_discards() -> None:
    def check(message: TransactionMessage) -> LocalTransactionState:
        raise RuntimeError("no database")

    with FakeBroker(transaction_check_max=3) as broker:
        producer = broker.transaction_producer("g", check_listener=check)
        sent = producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
        asked = 0
        for _ in range(5):
            broker.clock.advance(30)
            asked += broker.run_checks()
        trace = broker.transaction(sent.transaction_id)
    assert (asked, trace.state) == (3, "discarded")


def test_wall_clock_that_jumps_makes_no_check_due(broker: FakeBroker) -> None:
    producer = broker.transaction_producer("g", check_listener=lambda message: COMMIT)
    producer.send_in_transaction(Message("t", b"x"), executer=lambda message, arg: UNKNOWN)
    broker.clock.jump(3600)
    assert broker.run_checks() == 0


# Time -----------------------------------------------------------------------------------------------------------------


def test_times_of_messages_are_the_clocks() -> None:
    clock = ManualClock(1_600_000_000_000)
    with FakeBroker(clock=clock) as broker:
        clock.advance(1.5)
        broker.producer("p").send(Message("t", b"x"))
        (message,) = broker.messages("t")
    assert message.store_timestamp.timestamp() == 1_600_000_001.5
    with pytest.raises(InvalidOptionError, match=r"seconds must be 0 or more, got -1\nhint: jump\(\)"):
        clock.advance(-1)


def test_old_files_are_removed_when_the_clock_says_so() -> None:
    with FakeBroker(mapped_file_size_commit_log=1 << 16) as broker:
        producer = broker.producer("p")
        for _ in range(40):
            producer.send(Message("t", bytes(4096)), queue_id=0)
        before = len(broker.messages("t"))
        broker.clock.advance(80 * 3600)
        assert before == 40
        assert len(broker.messages("t")) < before


def test_two_brokers_share_a_clock_and_no_ids() -> None:
    clock = ManualClock()
    with FakeBroker(clock=clock) as one, FakeBroker(clock=clock) as other:
        ids = {broker.producer("p").send(Message("t", b"x")).message_id for broker in (one, other)}
        delayed = Message("t", b"later", delay_level=1)
        for broker in (one, other):
            broker.producer("p").send(delayed)
        clock.advance(1)
        assert [len(broker.messages("t")) for broker in (one, other)] == [2, 2]
    assert len(ids) == 2


def test_thread_that_waits_gets_what_another_one_sends(broker: FakeBroker) -> None:
    found: list[bytes] = []

    def consume() -> None:
        with broker.consumer("c", "t") as consumer:
            found.extend(message.body for message in consumer.poll(timeout=None))

    thread = threading.Thread(target=consume)
    thread.start()
    broker.producer("p").send(Message("t", b"1"))
    thread.join(30)
    assert found == [b"1"]
    assert broker.clock.monotonic() == 0


@pytest.mark.parametrize("advances", [False, True])
def test_wait_of_a_thread_ends_by_the_clock_or_by_real_time(broker: FakeBroker, advances: bool) -> None:
    found: list[object] = []

    def consume() -> None:
        with broker.consumer("c", "t") as consumer:
            found.append(consumer.poll(timeout=3600 if advances else 0.3))

    thread = threading.Thread(target=consume)
    thread.start()
    while advances and thread.is_alive():
        broker.clock.advance(600)
        thread.join(0.01)
    thread.join(30)
    assert found == [[]]


@pytest.mark.parametrize("orderly", [False, True])
def test_handlers_retry_by_the_clock_and_do_not_move_it_while_they_run(broker: FakeBroker, orderly: bool) -> None:
    """A failed message comes again after ten seconds, or after one if it is orderly; `timeout` ends `run`."""
    broker.producer("p").send(Message("t", b"1"))
    seen: list[float] = []

    def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append(broker.clock.monotonic())
        time.sleep(0.05)
        assert broker.clock.monotonic() == seen[-1]
        return ConsumeResult.SUCCESS if len(seen) > 1 else ConsumeResult.RECONSUME_LATER

    with broker.consumer("c", "t") as consumer:
        consumer.run(handle, threads=2, orderly=orderly, timeout=60)
    assert seen == pytest.approx([0, 1 if orderly else 10], abs=0.2)
    assert broker.clock.monotonic() == pytest.approx(seen[1] + 60, abs=0.2)


def test_no_file_is_opened_and_no_thread_started(tmp_path: Path) -> None:
    """In a process of its own: what earlier tests left in this one may go meanwhile."""
    program = """
import os
from txstore import LocalTransactionState, Message
from txstore.testing import FakeBroker

def resources():
    return os.listdir("/proc/self/fd"), os.listdir("/proc/self/task")

before = resources()
with FakeBroker() as broker:
    broker.producer("p").send(Message("t", b"1"))
    producer = broker.transaction_producer("g", check_listener=lambda message: LocalTransactionState.COMMIT)
    producer.send_in_transaction(Message("t", b"2"), executer=lambda message, arg: LocalTransactionState.UNKNOWN)
    broker.clock.advance(60)
    broker.run_checks()
    assert [message.body for message in broker.messages("t")] == [b"1", b"2"]
    assert resources() == before, (resources(), before)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
