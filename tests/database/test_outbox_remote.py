"""Guards messages within the user's own transaction for a broker in another process: each committed row's message is in
the log once, no other is, and neither `send` nor the commit waits for the broker.

Servers, shared stores, their kills and stops are real.
"""

from __future__ import annotations

import http.client
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.database.conftest import SMALL, Kind, new_kind
from tests.database.outbox_worker import connected, execute, group_of, source_of, work
from tests.database.served import TXSTORE, Served, served, store
from tests.process import stop
from tests.waiting import eventually
from txstore import ConnectOptions, EmbeddedBroker, Message, RemoteBroker, Server, ServerConfig, errors
from txstore.client import outbox_log
from txstore.database import Database
from txstore.database.outbox import Forwarder
from txstore.database.outbox.unattended import Unattended
from txstore.database.statements import delete_from_outbox

__all__ = ["served", "store"]

ROOT = Path(__file__).resolve().parents[2]
_SERVER = ServerConfig("127.0.0.1:0", name_server=None)


IN_MATRIX = ("sqlalchemy mariadb", "django sqlite", "django postgres", "django mariadb")


@pytest.fixture(params=["sqlite3", "psycopg", *(pytest.param(name, marks=pytest.mark.matrix) for name in IN_MATRIX)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        Database(found.address).create_table()
        yield found


class Worker:
    """A process that runs `outbox_worker`."""

    def __init__(self, kind: Kind, to: str, first: int, count: int, seed: int = 1) -> None:
        command = [sys.executable, "-m", "tests.database.outbox_worker", kind.given, to]
        self._process = subprocess.Popen(
            [*command, str(first), str(count), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self, what: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == what

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> None:
        """Lets it close its broker and end."""
        self._process.communicate("\n")
        assert self._process.returncode == 0


def bodies(broker: EmbeddedBroker | RemoteBroker) -> list[int]:
    """The numbers in all messages of the log."""
    found: list[int] = []
    for _, queue_id, offset, end in broker.queues("orders"):
        while offset < end:
            messages, offset = broker.read("orders", queue_id, offset, 256)
            found.extend(int(message.body) for message in messages)
    return found


def must_be_the_same(kind: Kind, broker: EmbeddedBroker | RemoteBroker) -> None:
    """Each committed order has one message, and no other message is there."""
    sent, orders = bodies(broker), kind.orders()
    assert [number for number, times in Counter(sent).items() if times > 1] == []
    assert sorted(sent) == orders


def waiting(kind: Kind) -> int:
    return int(kind.rows("SELECT count(*) FROM txstore_outbox")[0][0])


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes rows of other processes over soon, in this process."""
    monkeypatch.setattr(outbox_log, "_TAKE_OVER_SECONDS", 0.3)


@pytest.mark.kill
def test_broker_is_away_while_transactions_commit(kind: Kind, served: Served) -> None:
    """A stopped server answers nothing, so a `send` or a commit that waited for it would not return."""
    chance = random.Random(1)
    with txstore.connect(served.address, send_msg_timeout=600, reconnect_back_off_max=0.1) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        with served.paused():
            for number in range(500):
                work(session, producer, number, chance)
            assert producer.outbox_status().rows > 300
        served.kill()
        for number in range(500, 1000):
            work(session, producer, number, chance)
        assert producer.outbox_status().rows > 600
        eventually(lambda: isinstance(producer._forwarder.failure, errors.BrokerUnreachableError))
        session.close()
        served.start()
        eventually(lambda: sorted(bodies(broker)) == kind.orders())
        eventually(lambda: producer.outbox_status().rows == 0)
        assert producer.outbox_status().oldest_seconds == 0
        eventually(lambda: producer._forwarder.failure is None)
        must_be_the_same(kind, broker)


@pytest.mark.kill
def test_service_starts_while_the_broker_is_away(kind: Kind, served: Served) -> None:
    """The database remembers the log from an earlier start, without which the rows would belong to no log."""
    options: ConnectOptions = {"connect_in_background": True, "reconnect_back_off_max": 0.1}
    served.kill()
    with txstore.connect(served.address, **options) as broker, pytest.raises(errors.BrokerUnreachableError):
        broker.producer("order-service", database=Database(source_of(kind.given)))
    served.start()
    with txstore.connect(served.address) as broker:
        broker.producer("order-service", database=Database(source_of(kind.given)))
    served.kill()
    with pytest.raises(errors.BrokerUnreachableError):
        txstore.connect(served.address)
    with txstore.connect(served.address, **options) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session, chance = connected(kind.given), random.Random(1)
        for number in range(50):
            work(session, producer, number, chance)
        session.close()
        assert producer.outbox_status().rows > 20
        served.start()
        eventually(lambda: producer.outbox_status().rows == 0)
        must_be_the_same(kind, broker)


def test_rows_are_not_sent_to_another_log_than_the_remembered_one(kind: Kind, served: Served, tmp_path: Path) -> None:
    options: ConnectOptions = {"connect_in_background": True, "reconnect_back_off_max": 0.1}
    with txstore.connect(served.address) as broker:
        broker.producer("order-service", database=Database(source_of(kind.given)))
    served.kill()
    with txstore.connect(served.address, **options) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        producer.send(Message("orders", b"1"), session=session)
        session.commit()
        session.close()
        eventually(lambda: isinstance(producer._forwarder.failure, errors.BrokerUnreachableError))
        config = ServerConfig(served.address, name_server=None)
        with txstore.open(tmp_path / "other", **SMALL) as other, Server(other, config):
            other.create_topic("orders", 1)
            eventually(lambda: producer._forwarder.failure is None)
            assert bodies(other) == []
        assert producer.outbox_status().rows == 1


@pytest.mark.parametrize("kind", ["sqlite3"], indirect=True)
def test_forwarder_warns_of_messages_that_wait_for_long(
    kind: Kind, served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txstore.database.outbox.forwarder._OLD_SECONDS", 0.5)
    with (
        caplog.at_level(logging.WARNING, "txstore.database.outbox"),
        txstore.connect(served.address, send_msg_timeout=0.5, reconnect_back_off_max=0.1) as broker,
    ):
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        served.kill()
        session = connected(kind.given)
        producer.send(Message("orders", b"1"), session=session)
        session.commit()
        session.close()
        eventually(lambda: caplog.text.count("messages wait in the outbox for") > 1)
        served.start()
        eventually(lambda: producer.outbox_status().rows == 0)


def test_many_rows_are_deleted_while_they_are_sent(kind: Kind, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another process would take them over, because their owner seems to make no progress."""
    for name, value in [
        ("_ROWS", 20),
        ("_DELETE_SECONDS", 0.0),
        ("_DELETE_SOON_SECONDS", 0.0),
        ("_QUIET_SECONDS", 0.0),
    ]:
        monkeypatch.setattr(f"txstore.database.outbox.forwarder.{name}", value)
    left: list[int] = []
    append_many = outbox_log.RemoteLog.append_many

    def counted(self: outbox_log.RemoteLog, *arguments: Any, **options: Any) -> Any:
        left.append(waiting(kind))
        return append_many(self, *arguments, **options)

    with txstore.connect(served.address) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        producer.send_batch([Message("orders", b"%d" % number) for number in range(400)], session=session)
        monkeypatch.setattr(outbox_log.RemoteLog, "append_many", counted)
        session.commit()
        session.close()
        eventually(lambda: waiting(kind) == 0)
        assert sorted(bodies(broker)) == list(range(400))
    assert left[:20] == list(range(400, 0, -20))


def test_messages_of_a_group_stay_in_commit_order(kind: Kind, served: Served) -> None:
    with txstore.connect(served.address, send_msg_timeout=0.5, reconnect_back_off_max=0.1) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        for number in range(120):
            if number == 40:
                served.kill()
            if number == 80:
                served.start()
            producer.send(Message("orders", b"%d" % number, message_group="customer-1"), session=session)
            session.commit()
        session.close()
        eventually(lambda: len(bodies(broker)) >= 120)
        assert bodies(broker) == list(range(120))


@pytest.mark.kill
@pytest.mark.usefixtures("quickly")
def test_rows_of_a_killed_process_are_taken_over_once(kind: Kind, served: Served) -> None:
    worker = Worker(kind, served.address, 0, 0, 7)
    worker.says("open")
    eventually(lambda: len(kind.orders()) > 20)
    with served.paused():
        before = len(kind.orders())
        eventually(lambda: len(kind.orders()) > before + 20)
        worker.kill()
    assert waiting(kind) >= 20
    with txstore.connect(served.address) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        eventually(lambda: producer.outbox_status().rows == 0)
        must_be_the_same(kind, broker)


@pytest.mark.kill
@pytest.mark.usefixtures("quickly")
def test_owner_that_was_stopped_for_long_sends_nothing_twice(kind: Kind, served: Served) -> None:
    worker = Worker(kind, served.address, 0, 60, 7)
    worker.says("open")
    with served.paused():
        worker.says("committed")
        stop(worker.pid)
    try:
        with txstore.connect(served.address) as broker:
            producer = broker.producer("order-service", database=Database(source_of(kind.given)))
            # Not that no row waits: those that the owner was deleting are locked until it continues.
            eventually(lambda: sorted(bodies(broker)) == kind.orders())
            os.kill(worker.pid, signal.SIGCONT)
            worker.end()
            eventually(lambda: producer.outbox_status().rows == 0)
            must_be_the_same(kind, broker)
    finally:
        worker.kill()


LOCKING = ["psycopg", *(pytest.param(name, marks=pytest.mark.matrix) for name in IN_MATRIX if "sqlite" not in name)]


@contextmanager
def rows_locked(kind: Kind) -> Iterator[None]:
    """Three rows are locked, as by a process that was stopped between a deletion and its commit."""
    ids = [row_id for (row_id,) in kind.rows("SELECT id FROM txstore_outbox ORDER BY id LIMIT 3")]
    session = connected(kind.address)
    execute(session, delete_from_outbox(ids, "mariadb" if kind.address.startswith("mysql") else "postgresql"))
    try:
        yield
    finally:
        session.rollback()
        session.close()


@pytest.mark.parametrize("kind", LOCKING, indirect=True)
def test_owner_does_not_wait_for_locked_rows(kind: Kind, served: Served) -> None:
    chance = random.Random(7)
    with txstore.connect(served.address) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        with ExitStack() as locked:
            with served.paused():
                for number in range(30):
                    work(session, producer, number, chance)
                locked.enter_context(rows_locked(kind))
            eventually(lambda: waiting(kind) == 3)
            for number in range(30, 40):
                work(session, producer, number, chance)
            eventually(lambda: waiting(kind) == 3)
            must_be_the_same(kind, broker)
        session.close()
        eventually(lambda: waiting(kind) == 0)
        must_be_the_same(kind, broker)


@pytest.mark.parametrize("kind", LOCKING, indirect=True)
@pytest.mark.kill
@pytest.mark.usefixtures("quickly")
def test_rows_that_are_locked_are_taken_over_later(kind: Kind, served: Served) -> None:
    left_by_a_killed_process(kind, served)
    number = 450_000  # Which that process has not used.
    with txstore.connect(served.address) as broker:
        with rows_locked(kind):
            producer = broker.producer("order-service", database=Database(source_of(kind.given)))
            eventually(lambda: waiting(kind) == 3)
            session = connected(kind.given)
            work(session, producer, number, random.Random(1))
            session.close()
            eventually(lambda: number in bodies(broker))
        eventually(lambda: producer.outbox_status().rows == 0)
        must_be_the_same(kind, broker)


@pytest.mark.kill
def test_message_of_a_group_does_not_wait_for_the_owner_of_an_earlier_row(
    kind: Kind, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is stopped, and nobody takes its rows over. The next process sends those of the group first."""
    monkeypatch.setattr(outbox_log, "_TAKE_OVER_SECONDS", 3600.0)
    worker = Worker(kind, served.address, 0, 60, 7)
    worker.says("open")
    try:
        with served.paused():
            worker.says("committed")
            stop(worker.pid)
        with txstore.connect(served.address) as broker:
            producer = broker.producer("order-service", database=Database(source_of(kind.given)))
            session = connected(kind.given)
            for number in (63, 70, 77, 84):
                execute(session, f"INSERT INTO orders VALUES ({number}, 'x')")
                message = Message("orders", b"%d" % number, message_group=group_of(number))
                producer.send(message, session=session)
                session.commit()
            session.close()
            eventually(lambda: {63, 70, 77, 84} <= set(bodies(broker)))
            os.kill(worker.pid, signal.SIGCONT)
            worker.end()
            must_be_the_same(kind, broker)
            for group in ("group-0", "group-1", "group-2"):
                expected = [number for number in kind.orders() if group_of(number) == group]
                assert [number for number in bodies(broker) if group_of(number) == group] == expected
                assert len(expected) > 1, "otherwise nothing was tried"
    finally:
        worker.kill()


@pytest.mark.parametrize("remote_first", [True, False])
@pytest.mark.usefixtures("quickly")
def test_embedded_and_remote_brokers_forward_each_others_rows(
    kind: Kind, store: Path, served: Served, remote_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(source_of(kind.given))

    def send(number: int, broker: EmbeddedBroker | RemoteBroker) -> None:
        """Sends a message whose row stays, because its process forwards nothing."""
        monkeypatch.setattr("txstore.database.outbox.forwarder.Forwarder.start", lambda _: None)
        monkeypatch.setattr("txstore.database.outbox.forwarder.Forwarder.inserted", lambda *_, **__: ())
        monkeypatch.setattr("txstore.database.outbox.producer.append_early", lambda *_: None)
        producer = broker.producer("order-service", database=database)
        session = connected(kind.given)
        execute(session, f"INSERT INTO orders VALUES ({number}, 'x')")
        producer.send(Message("orders", b"%d" % number), session=session)
        session.commit()
        session.close()
        monkeypatch.undo()
        monkeypatch.setattr(outbox_log, "_TAKE_OVER_SECONDS", 0.3)

    def forward(broker: EmbeddedBroker | RemoteBroker) -> None:
        producer = broker.producer("order-service", database=database)
        eventually(lambda: producer.outbox_status().rows == 0)
        must_be_the_same(kind, broker)

    if remote_first:
        with txstore.connect(served.address) as remote:
            send(1, remote)
        served.kill()
        with txstore.open(store, **SMALL) as embedded:
            assert bodies(embedded) == []
            forward(embedded)
    else:
        served.kill()
        with txstore.open(store, **SMALL) as embedded:
            send(1, embedded)
        served.start()
        with txstore.connect(served.address) as remote:
            assert bodies(remote) == []
            forward(remote)


def test_row_is_deleted_only_when_its_message_is_synced(kind: Kind, store: Path) -> None:
    settings = {**SMALL, "flush_disk_type": "ASYNC_FLUSH", "flush_interval_commit_log": 3600}
    with (
        txstore.open(store, **settings) as broker,
        Server(broker, _SERVER) as server,
        txstore.connect(str(server.address)) as remote,
    ):
        remote.producer("other").send(Message("orders", b"0"))
        assert broker.store.durable_end < broker.store.appended_end, "others do not wait for a sync"
        producer = remote.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        for number in range(1, 5):
            producer.send(Message("orders", b"%d" % number), session=session)
            session.commit()
            eventually(lambda: waiting(kind) == 0)
            last = broker.read("orders", 0, number, 1)[0][0]
            assert broker.store.durable_end > last.physical_offset
        session.close()


def test_service_that_reads_then_writes_meets_no_lock(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """SQLite refuses a deferred transaction at once if another connection has written since its first read."""
    monkeypatch.setattr("txstore.database.outbox.forwarder._DELETE_SOON_SECONDS", 0.0)
    monkeypatch.setattr("txstore.database.outbox.forwarder._QUIET_SECONDS", 3600.0)
    rounds = 0
    forward_own = Forwarder._forward_own

    async def counted(self: Forwarder, handle: Any, *, everything: bool) -> int:
        nonlocal rounds
        rounds += 1
        return await forward_own(self, handle, everything=everything)

    def forwarded(broker: EmbeddedBroker, number: int) -> None:
        """Waits until the forwarder could have deleted the rows of so many messages."""
        eventually(lambda: len(bodies(broker)) == number)
        seen = rounds
        eventually(lambda: rounds > seen + 1)

    monkeypatch.setattr(Forwarder, "_forward_own", counted)
    with new_kind("sqlite3", tmp_path, request) as kind:
        Database(source_of(kind.given)).create_table()
        with txstore.open(store, **SMALL) as broker, Server(broker, _SERVER) as server:
            with txstore.connect(str(server.address)) as remote:
                producer = remote.producer("order-service", database=Database(source_of(kind.given)))
                session = sqlite3.connect(kind.address, isolation_level=None)
                for number in range(10):
                    session.execute("BEGIN DEFERRED")
                    assert session.execute("SELECT count(*) FROM orders").fetchone() == (number,)
                    forwarded(broker, number)
                    session.execute("INSERT INTO orders VALUES (?, '')", (number,))
                    producer.send(Message("orders", b"%d" % number), session=session)
                    session.execute("COMMIT")
                assert 1 <= waiting(kind) <= 2, "a transaction deletes the rows of those before it"
                session.close()
            assert sorted(bodies(broker)) == list(range(10))
        assert waiting(kind) == 0


def test_message_for_an_unknown_topic_waits_for_it(kind: Kind, tmp_path: Path) -> None:
    with (
        txstore.open(tmp_path / "store", auto_create_topic_enable=False, **SMALL) as broker,
        Server(broker, _SERVER) as server,
        txstore.connect(str(server.address)) as remote,
    ):
        producer = remote.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        producer.send(Message("orders", b"1"), session=session)
        producer.send(Message("known", b"1"), session=session)
        session.commit()
        broker.create_topic("known", 1)
        eventually(lambda: producer.outbox_status().rows == 1)
        assert kind.rows("SELECT count(*) FROM txstore_outbox WHERE parked IS NOT NULL")[0][0] == 0
        broker.create_topic("orders", 1)
        eventually(lambda: producer.outbox_status().rows == 0)
        assert bodies(broker) == [1]
        session.close()


def test_message_for_a_missing_queue_is_parked(kind: Kind, served: Served) -> None:
    with txstore.connect(served.address) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        producer.send(Message("orders", b"1"), session=session, queue_id=7)
        producer.send(Message("orders", b"2"), session=session, queue_id=0)
        session.commit()
        session.close()
        eventually(lambda: producer.outbox_status().rows == 0)
        assert bodies(broker) == [2]
        [parked] = [row.parked for row in Database(source_of(kind.given)).outbox() if row.parked is not None]
        assert "topic orders has no queue 7" in parked


def test_message_that_the_server_refuses_is_parked(kind: Kind, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 1)
        with Server(broker, _SERVER) as server, txstore.connect(str(server.address)) as remote:
            producer = remote.producer("order-service", database=Database(source_of(kind.given)))
            session = connected(kind.given)
            producer.send(Message("orders", b"x" * (1 << 17), message_group="g"), session=session)
            producer.send(Message("orders", b"held", message_group="g"), session=session)
            producer.send(Message("orders", b"1"), session=session)
            session.commit()
            eventually(lambda: producer.outbox_status().rows == 1)
            eventually(lambda: len(bodies(broker)) == 1)
            [parked] = [row.parked for row in Database(source_of(kind.given)).outbox() if row.parked is not None]
            assert "MESSAGE_ILLEGAL" in parked
            with pytest.raises(errors.InvalidMessageError, match="max_message_size allows"):
                producer.send(Message("orders", b"x" * (5 << 20)), session=session)
            session.close()


def test_time_too_far_ahead_is_refused_before_the_commit_or_parked_if_only_the_server_knows(
    kind: Kind, store: Path, served: Served
) -> None:
    far = Message("orders", b"far", deliver_at=datetime.now(UTC) + timedelta(days=4))
    with (
        txstore.connect(served.address) as remote,
        txstore.open(store.with_name("shared"), shared=True, timer_max_delay_sec=timedelta(days=2), **SMALL) as shared,
    ):
        session = connected(kind.given)
        producer = shared.producer("order-service", database=Database(source_of(kind.given)))
        with pytest.raises(errors.InvalidMessageError, match="timer_max_delay_sec allows 172800 s"):
            producer.send(far, session=session)
        remote.producer("order-service", database=Database(source_of(kind.given))).send(far, session=session)
        session.commit()
        session.close()
        database = Database(source_of(kind.given))
        eventually(lambda: [row for row in database.outbox() if row.parked is not None] != [])
        [row] = database.outbox()
        assert "timer_max_delay_sec allows 259200 s" in str(row.parked)


@pytest.mark.kill
def test_forked_process_forwards_what_it_commits(kind: Kind, store: Path) -> None:
    with txstore.open(store, shared=True, **SMALL) as broker:
        producer = broker.producer("order-service", database=Database(source_of(kind.given)))
        session = connected(kind.given)
        work(session, producer, 1, random.Random(3))
        session.close()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                session = connected(kind.given)
                for number in range(2, 20):
                    work(session, producer, number, random.Random(3))
                eventually(lambda: producer.outbox_status().rows == 0)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        eventually(lambda: producer.outbox_status().rows == 0)
        must_be_the_same(kind, broker)


_FORWARD = [*TXSTORE, "forward"]


def left_by_a_killed_process(kind: Kind, served: Served) -> None:
    """Leaves rows in the database whose messages are not in the log."""
    worker = Worker(kind, served.address, 0, 0, 7)
    worker.says("open")
    eventually(lambda: len(kind.orders()) > 5)
    with served.paused():
        before = len(kind.orders())
        eventually(lambda: len(kind.orders()) > before + 20)
        worker.kill()
    assert waiting(kind) > 20


@pytest.mark.kill
@pytest.mark.parametrize(
    ("kind", "by_path"),
    [
        ("sqlite3", True),
        ("psycopg", False),
        pytest.param("sqlite3", False, marks=pytest.mark.matrix),
        pytest.param("psycopg", True, marks=pytest.mark.matrix),
        *(pytest.param(name, by_path, marks=pytest.mark.matrix) for name in IN_MATRIX for by_path in (False, True)),
    ],
    indirect=["kind"],
)
def test_command_sends_what_waits(kind: Kind, served: Served, store: Path, by_path: bool) -> None:
    left_by_a_killed_process(kind, served)
    if by_path:
        served.kill()
    command = [*_FORWARD, kind.address, "--to", str(store) if by_path else served.address, "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "forwarded " in done.stdout
    assert waiting(kind) == 0
    with txstore.open(store, shared=True) if by_path else txstore.connect(served.address) as broker:
        must_be_the_same(kind, broker)


@pytest.mark.kill
@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
def test_command_tells_what_waits(kind: Kind, served: Served) -> None:
    parser = pytest.importorskip("prometheus_client.parser")

    def get(path: str) -> tuple[int, str]:
        line = http.client.HTTPConnection(address, timeout=60)
        line.request("GET", path)
        answer = line.getresponse()
        body = answer.read().decode()
        line.close()
        return answer.status, body

    def rows() -> dict[str, float]:
        families = parser.text_string_to_metric_families(get("/metrics")[1])
        return {sample.name: sample.value for family in families for sample in family.samples}

    left_by_a_killed_process(kind, served)
    command = [*_FORWARD, kind.address, "--to", served.address, "--metrics", "127.0.0.1:0"]
    with served.paused():
        left = waiting(kind)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert running.stdout is not None
    try:
        assert running.stdout.readline().startswith("forwards messages from")
        address = running.stdout.readline().split()[-1]
        before = rows()
        assert before["txstore_outbox_rows"] == left
        assert before["txstore_outbox_oldest_seconds"] > 0
        assert get("/readyz") == (200, "ready\n")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


@pytest.mark.parametrize(
    "kind",
    ["sqlite3", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("psycopg", *IN_MATRIX))],
    indirect=True,
)
def test_command_names_what_is_wrong(kind: Kind, served: Served, tmp_path: Path) -> None:
    for arguments, wrong in [
        ([kind.address, "--to", str(tmp_path / "none")], "there is no store at"),
        ([kind.address, "--to", served.address, "--metrics", "nowhere"], "metrics: expected HOST:PORT"),
        ([str(tmp_path / "new.db"), "--to", served.address], "new.db"),
    ]:
        done = subprocess.run([*_FORWARD, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert wrong in done.stderr


def test_row_is_taken_over_only_if_nothing_of_its_owner_changes() -> None:
    found = Unattended(10)
    assert found.look({1: [11, 12], 2: [21]}, 0) == {}
    assert found.look({1: [11, 12, 13], 2: [21]}, 9) == {}
    assert found.look({1: [11, 12, 13], 2: [22]}, 10) == {1: {11, 12}}
    found.taken(1, [11, 12])
    assert found.look({1: [13], 2: [22]}, 19) == {1: {13}}
    assert found.look({1: [13], 2: [22]}, 20) == {1: {13}, 2: {22}}
    found.forget()
    assert found.look({1: [13], 2: [22]}, 21) == {}


def test_rows_of_an_owner_that_makes_progress_wait_again() -> None:
    found = Unattended(10)
    assert found.look({1: [11, 12]}, 0) == {}
    assert found.look({1: [12]}, 5) == {}
    assert found.look({1: [12]}, 14) == {}
    assert found.look({1: [12]}, 15) == {1: {12}}
    found.taken(2, [21])  # Nobody saw it wait.
    assert found.look({1: [12]}, 16) == {1: {12}}
