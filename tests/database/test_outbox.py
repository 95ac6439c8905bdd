"""Guards messages within the user's own transaction: each committed row's message is in the log once, no other is.

With every blocking kind of session, on both databases.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

import txstore
from tests.database import django_kind
from tests.database.conftest import DJANGO_KINDS, SMALL, Kind, bodies
from tests.database.outbox_worker import connected
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, errors
from txstore.database import Database
from txstore.database.outbox import OutboxProducer

BLOCKING = [
    "sqlite3",
    "sqlalchemy sqlite",
    "sqlalchemy sqlite connection",
    "psycopg",
    "sqlalchemy postgres",
    pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix),
    pytest.param("sqlalchemy mariadb connection", marks=pytest.mark.matrix),
    *DJANGO_KINDS,
]


pytestmark = pytest.mark.parametrize("kind", BLOCKING, indirect=True)


@contextmanager
def session_of(kind: Kind) -> Iterator[Any]:
    """A user's blocking session; what it did not commit is lost."""
    if kind.name == "sqlite3":
        session: Any = sqlite3.connect(kind.address)
    elif kind.name == "psycopg":
        session = psycopg.connect(kind.address)
    elif kind.is_django:
        session = django_kind.atomic_session(kind.alias)
    elif "connection" in kind.name:
        session = kind.engine.connect()
    else:
        session = Session(kind.engine)
    try:
        yield session
    finally:
        session.close()


def execute(session: Any, sql: str) -> None:
    is_sqlalchemy = type(session).__module__.startswith("sqlalchemy")
    session.execute(text(sql) if is_sqlalchemy else sql)


def rows(kind: Kind) -> int:
    return int(kind.rows("SELECT count(*) FROM txstore_outbox")[0][0])


def test_message_is_sent_with_the_commit(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    with session_of(kind) as session:
        execute(session, "INSERT INTO orders VALUES (1, 'a')")
        receipt = producer.send(Message("orders", b"1", tags="paid", keys=["o-1"]), session=session)
        assert (len(receipt.message_id), receipt.topic) == (32, "orders")
        assert (bodies(broker), rows(kind)) == ([], 0)
        session.commit()
        eventually(lambda: bodies(broker) == [b"1"])
    message = broker.read("orders", 0, 0, 1)[0][0]
    assert (message.message_id, message.tags, list(message.keys)) == (receipt.message_id, "paid", ["o-1"])
    broker.close()
    assert (kind.orders(), rows(kind)) == ([1], 0)


def test_message_is_not_sent_with_a_rollback(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    with session_of(kind) as session:
        producer.send(Message("orders", b"1"), session=session)
        session.rollback()
        producer.send_batch([Message("orders", b"2"), Message("orders", b"3")], session=session)
        execute(session, "SAVEPOINT one")
        producer.send(Message("orders", b"4"), session=session)
        execute(session, "ROLLBACK TO SAVEPOINT one")
        producer.send(Message("orders", b"5"), session=session)
        session.commit()
        eventually(lambda: len(bodies(broker)) >= 3)
        producer.send(Message("orders", b"6"), session=session)
    broker.close()
    assert rows(kind) == 0
    with txstore.open(broker.store.path, **SMALL) as again:
        assert bodies(again) == [b"2", b"3", b"5"]


def test_without_a_session_a_message_is_sent_at_once(broker: EmbeddedBroker, producer: OutboxProducer) -> None:
    sent = producer.send(Message("orders", b"1"), session=None)
    assert (sent.queue_offset, bodies(broker)) == (0, [b"1"])


def test_messages_of_a_group_stay_in_commit_order(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    with session_of(kind) as session:
        for number in range(100):
            if number % 3 == 2:
                producer.send(Message("orders", b"rolled back", message_group="customer-1"), session=session)
                session.rollback()
            producer.send(Message("orders", b"%d" % number, message_group="customer-1"), session=session)
            session.commit()
    eventually(lambda: len(bodies(broker)) == 100)
    assert bodies(broker) == [b"%d" % number for number in range(100)]


def test_delay_begins_with_the_commit(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    with session_of(kind) as session:
        producer.send(Message("orders", b"in a second", delay_level=1), session=session)
        producer.send(Message("orders", b"at once"), session=session)
        before = datetime.now(UTC)
        session.commit()
    # If the second has passed before it is forwarded, it is the first one.
    eventually(lambda: sorted(bodies(broker)) == [b"at once", b"in a second"])
    # Store timestamps have whole milliseconds.
    assert stored(broker, b"in a second") - before > timedelta(milliseconds=999)


def stored(broker: EmbeddedBroker, body: bytes) -> datetime:
    """When the message was delivered."""
    (message,) = [message for message in broker.read("orders", 0, 0, 2)[0] if message.body == body]
    return message.store_timestamp


def test_message_of_a_transaction_is_delivered_at_its_time(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    with session_of(kind) as session:
        producer.send(Message("orders", b"at its time", deliver_at=due), session=session)
        producer.send(Message("orders", b"past", deliver_at=due - timedelta(days=1)), session=session)
        session.commit()
    eventually(lambda: sorted(bodies(broker)) == [b"at its time", b"past"])
    # Store timestamps have whole milliseconds.
    assert stored(broker, b"at its time") - due > timedelta(milliseconds=-1)


def test_message_whose_time_must_wait_for_others_holds_back_no_message_without_one(
    database: Database, kind: Kind, tmp_path: Path
) -> None:
    with txstore.open(tmp_path / "store", timed_messages_max=1, **SMALL) as broker:
        broker.create_topic("orders", 1)
        producer = broker.producer("order-service", database=database)
        due = datetime.now(UTC) + timedelta(hours=1)
        sent = []
        for message in [Message("orders", b"later", deliver_at=due) for _ in range(3)] + [Message("orders", b"now")]:
            with session_of(kind) as session:
                sent.append(producer.send(message, session=session).message_id)
                session.commit()
        eventually(lambda: bodies(broker) == [b"now"])
        waiting = {row.message_id: row.parked for row in database.outbox()}
        assert {name: waiting.get(name, "gone") for name in sent[1:3]} == dict.fromkeys(sent[1:3])


def test_group_whose_numbers_were_given_in_another_order_is_sent(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    """A thread gets a number for its row; until it inserts the row, another thread has sent to the same group."""
    numbers = [producer._forwarder.new_id() for _ in range(3)]
    producer._forwarder.new_id = iter(reversed(numbers)).__next__
    with session_of(kind) as session:
        for body in (b"1", b"2", b"3"):
            producer.send(Message("orders", body, message_group="customer-1"), session=session)
        session.commit()
    eventually(lambda: bodies(broker) == [b"1", b"2", b"3"])


def test_what_cannot_be_sent_is_refused_before_anything_is_written(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    with session_of(kind) as session:
        far = Message("orders", b"far", deliver_at=datetime.now(UTC) + timedelta(days=3, seconds=9))
        with pytest.raises(errors.InvalidMessageError, match=r"in 2592\d\d s; timer_max_delay_sec allows 259200 s"):
            producer.send(far, session=session)
        with pytest.raises(errors.InvalidMessageError, match="max_message_size allows"):
            producer.send(Message("orders", b"x" * (1 << 17)), session=session)
        with pytest.raises(errors.InvalidNameError, match="has no queue 7"):
            producer.send(Message("orders", b"x"), session=session, queue_id=7)
        with pytest.raises(errors.InvalidNameError, match="system"):
            producer.send(Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), session=session)
        with pytest.raises(errors.InvalidMessageError, match="expected a Message"):
            producer.send("text", session=session)  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidOptionError, match="must be a connection or a session"):
            producer.send(Message("orders", b"x"), session=object())  # type: ignore[call-overload]
        session.commit()
    assert rows(kind) == 0


def test_session_that_commits_each_statement_is_refused(producer: OutboxProducer, kind: Kind) -> None:
    if kind.name == "sqlite3":
        at_once: Any = sqlite3.connect(kind.address, isolation_level=None)
    elif kind.name == "psycopg":
        at_once = psycopg.connect(kind.address, autocommit=True)
    elif kind.is_django:
        from django.db import connections

        at_once = connections[kind.alias]
    else:
        at_once = create_engine(kind.engine.url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect()
    with pytest.raises(errors.InvalidOptionError, match="commits each statement at once"):
        producer.send(Message("orders", b"x"), session=at_once)
    at_once.close()
    assert rows(kind) == 0


def _commit_and_die(address: str, path: Path, count: int, line: Connection) -> None:
    broker = txstore.open(path, **SMALL)
    producer = broker.producer("order-service", database=Database(address))
    session = connected(address)
    for number in range(count):
        producer.send(Message("orders", b"%d" % number), session=session)
        session.commit()
    producer.send(Message("orders", b"never"), session=session)
    line.send(os.getpid())
    signal.pause()


@pytest.mark.kill
@pytest.mark.parametrize("count", [*(pytest.param(count, marks=pytest.mark.matrix) for count in (1, 7)), 120])
def test_rows_of_a_killed_process_are_forwarded_once(
    database: Database, kind: Kind, tmp_path: Path, count: int
) -> None:
    path, spawn = tmp_path / "killed", multiprocessing.get_context("spawn")
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("orders", 1)
    mine, its = spawn.Pipe()
    child = spawn.Process(target=_commit_and_die, args=(kind.address, path, count, its))
    child.start()
    os.kill(mine.recv(), signal.SIGKILL)
    child.join()
    with txstore.open(path, **SMALL) as broker:
        producer = broker.producer("order-service", database=database)
        with session_of(kind) as session:
            producer.send(Message("orders", b"last"), session=session)
            session.commit()
        eventually(lambda: len(bodies(broker)) == count + 1)
    assert rows(kind) == 0
    with txstore.open(path, **SMALL) as broker:
        assert sorted(bodies(broker)) == sorted([*(b"%d" % number for number in range(count)), b"last"])
