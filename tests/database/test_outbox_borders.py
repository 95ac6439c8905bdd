"""Guards when a message in the user's own transaction is visible, and which rows wait: savepoints, joins, refusals.

On SQLite, and on a real PostgreSQL where that is installed.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import txstore
from tests.database.conftest import SMALL, Kind, bodies, new_kind
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, errors
from txstore._native import OutboxRow
from txstore.database import Database, TableError
from txstore.database.outbox import OutboxProducer, OutboxStatus


@pytest.fixture(params=["sqlalchemy sqlite", "sqlalchemy postgres"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        if request.param == "sqlalchemy sqlite":
            # As SQLAlchemy's page on pysqlite says; otherwise a savepoint that begins a transaction commits it.
            event.listen(found.engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
            event.listen(found.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        yield found


def settled(broker: EmbeddedBroker, producer: OutboxProducer, engine: Engine) -> list[bytes]:
    """The messages after everything that was committed is in the log: a last one is sent and awaited."""
    with Session(engine) as session:
        producer.send(Message("orders", b"last"), session=session)
        session.commit()
    eventually(lambda: b"last" in bodies(broker))
    broker.close()
    with txstore.open(broker.store.path, **SMALL) as again:
        return [body for body in bodies(again) if body != b"last"]


def test_on_sqlite_a_message_is_visible_when_the_commit_returns(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    with Session(kind.engine) as session:
        for number in range(50):
            producer.send(Message("orders", b"%d" % number), session=session)
            session.commit()
            if kind.name == "sqlalchemy sqlite":
                assert bodies(broker)[-1] == b"%d" % number
    eventually(lambda: len(bodies(broker)) == 50)


@pytest.mark.parametrize("kind", ["sqlalchemy sqlite"], indirect=True)
def test_the_commit_waits_for_the_thread_that_has_claimed_its_row(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may look for commits just before the commit's hook, and append after the commit has returned."""
    forwarder = producer._forwarder
    append, committed = forwarder._appending.append, forwarder.committed

    async def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.2)  # In its thread.
        return await append(*arguments, **options)

    def after_the_thread(row_id: int, *arguments: Any) -> None:
        eventually(lambda: row_id in forwarder._claimed)
        committed(row_id, *arguments)

    monkeypatch.setattr("txstore.database.outbox.forwarder._CLAIMED_SECONDS", 60.0)
    monkeypatch.setattr(forwarder._appending, "append", late)
    monkeypatch.setattr(forwarder, "committed", after_the_thread)
    with Session(kind.engine) as session:
        producer.send(Message("orders", b"1"), session=session)
        session.commit()
        assert bodies(broker) == [b"1"]


def test_savepoints(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    with Session(kind.engine) as session, session.begin():
        producer.send(Message("orders", b"kept"), session=session)
        with session.begin_nested():
            producer.send(Message("orders", b"released"), session=session)
        nested = session.begin_nested()
        producer.send(Message("orders", b"rolled back"), session=session)
        nested.rollback()
    with Session(kind.engine) as session:
        with session.begin_nested():
            producer.send(Message("orders", b"released, then rolled back"), session=session)
        assert bodies(broker) in ([b"kept", b"released"], [b"kept"], [])
        session.rollback()
    assert settled(broker, producer, kind.engine) == [b"kept", b"released"]


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"])
@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
def test_session_that_has_joined_an_outer_transaction(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind, mode: Any, commits: bool
) -> None:
    with kind.engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            producer.send(Message("orders", b"1"), session=session)
            session.commit()
        is_open = outer.is_active and mode != "control_fully"
        if is_open:
            assert bodies(broker) == []
            outer.commit() if commits else outer.rollback()
    expected = [b"1"] if commits or not is_open else []
    assert settled(broker, producer, kind.engine) == expected


def test_commit_that_is_refused_sends_nothing(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    with kind.engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER PRIMARY KEY)"))
        references = "INTEGER REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE bills (customer {references})"))
    if kind.name == "sqlalchemy sqlite":
        event.listen(kind.engine, "checkout", lambda driver, *_: driver.execute("PRAGMA foreign_keys = ON"))
    with Session(kind.engine) as session:
        session.execute(text("INSERT INTO bills VALUES (7)"))
        producer.send(Message("orders", b"1"), session=session)
        driver: Any = session.connection().connection.driver_connection
        with pytest.raises(Exception, match=r"(?i)foreign key"):
            session.commit()
        driver.rollback()  # SQLAlchemy leaves the transaction open on SQLite, as it does without messages.
    assert settled(broker, producer, kind.engine) == []


def test_commit_of_a_failed_transaction_sends_nothing(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    """PostgreSQL answers COMMIT with a rollback then, and drivers raise nothing."""
    with Session(kind.engine) as session:
        producer.send(Message("orders", b"1"), session=session)
        with pytest.raises(Exception, match="nowhere"):
            session.execute(text("SELECT * FROM nowhere"))
        session.commit()
    is_kept = kind.name == "sqlalchemy sqlite"  # A failed statement leaves the rest of a transaction as it is.
    assert settled(broker, producer, kind.engine) == ([b"1"] if is_kept else [])


def test_row_that_cannot_be_sent_holds_back_its_own_group_only(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    with Session(kind.engine) as session:
        strange = bytes([99]) + OutboxRow.of(Message("orders", b"x", message_group="a"), "order-service").data[1:]
        columns, forwarder = "(id, destination, message, message_group, group_seq)", producer._forwarder
        session.execute(
            text(f"INSERT INTO txstore_outbox {columns} VALUES (:id, :destination, :message, 'a', 1)"),
            {"id": forwarder.new_id(), "destination": forwarder.destination, "message": strange},
        )
        producer.send(Message("orders", b"second", message_group="a"), session=session)
        producer.send(Message("orders", b"other", message_group="b"), session=session)
        session.commit()
    eventually(lambda: kind.rows("SELECT count(*) FROM txstore_outbox WHERE parked IS NOT NULL") == [(1,)])
    eventually(lambda: bodies(broker) == [b"other"])
    assert "version 99" in kind.rows("SELECT parked FROM txstore_outbox WHERE parked IS NOT NULL")[0][0]
    with kind.engine.begin() as connection:
        connection.execute(text("DELETE FROM txstore_outbox WHERE parked IS NOT NULL"))
    eventually(lambda: bodies(broker) == [b"other", b"second"])


def test_row_older_than_the_log_is_parked_as_in_doubt(database: Database, kind: Kind, tmp_path: Path) -> None:
    """Retention may have removed the message that a killed process appended."""
    path = tmp_path / "doubt"
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("orders", 1)
        row = OutboxRow.of(Message("orders", b"old"), "order-service")
        destination = broker.producer("order-service", database=database)._forwarder.destination
        for number in range(40):
            broker.append(Message("orders", b"%d" % number * 30_000), 0)
        broker.store.remove_log_files(1 << 62, keep_unread=False)
    with kind.engine.begin() as connection:
        insert = text("INSERT INTO txstore_outbox (id, destination, message) VALUES (1, :destination, :message)")
        connection.execute(insert, {"destination": destination, "message": row.data})
    with txstore.open(path, **SMALL) as broker:
        assert broker.stat().min_physical_offset > 0
        producer = broker.producer("order-service", database=database)
        with Session(kind.engine) as session:
            producer.send(Message("orders", b"new"), session=session)
            session.commit()
        eventually(
            lambda: kind.rows("SELECT count(*) FROM txstore_outbox WHERE parked LIKE '%no longer reaches%'") == [(1,)]
        )
        first = broker.queue_range("orders", 0)[0]
        eventually(lambda: broker.read("orders", 0, first, 100)[0][-1].body == b"new")


def test_wrong_or_missing_tables_are_named(broker: EmbeddedBroker, producer: OutboxProducer, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    session = sqlite3.connect(other)
    with pytest.raises(TableError, match="another database"):
        producer.send(Message("orders", b"1"), session=session)
    session.close()
    with pytest.raises(TableError, match="create_table"):
        broker.producer("order-service", database=Database(str(other)))
    producer.close()
    connection = sqlite3.connect(other)
    with pytest.raises(errors.StoreClosedError):
        producer.send(Message("orders", b"1"), session=connection)
    connection.close()


def test_session_that_cannot_be_used_is_refused_also_after_the_first_message(tmp_path: Path) -> None:
    """A producer looks at its first session longer than at later ones."""
    file, other, without = (tmp_path / f"{name}.db" for name in ("orders", "other", "without"))
    database = Database(file)
    for path in (file, other):
        Database(path).create_table()
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 1)
        producer = broker.producer("order-service", database=database)

        def send(path: Path) -> sqlite3.Connection:
            session = sqlite3.connect(path)
            session.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
            session.execute("INSERT INTO orders VALUES (1)")  # Begins a transaction.
            assert session.in_transaction
            producer.send(Message("orders", b"sent"), session=session)
            return session

        send(file).commit()
        for path in (other, without):
            with pytest.raises(TableError, match="another database"):
                send(path)
        session = send(file)
        session.commit()
        session.close()
        with pytest.raises(errors.InvalidOptionError, match="closed"):
            producer.send(Message("orders", b"sent"), session=session)
        at_once = sqlite3.connect(file, isolation_level=None)
        with pytest.raises(errors.InvalidOptionError, match="commits each statement at once"):
            producer.send(Message("orders", b"sent"), session=at_once)
        at_once.close()
        eventually(lambda: len(bodies(broker)) == 2)


def test_service_that_reads_then_writes_meets_no_lock(tmp_path: Path) -> None:
    """SQLite refuses a deferred transaction at once if another connection has written since its first read."""
    kind = Kind("sqlite3", str(tmp_path / "orders.db"))
    connection = sqlite3.connect(kind.address)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE orders (number INTEGER, id TEXT)")
    connection.close()
    database = Database(kind.address)
    database.create_table()
    session = sqlite3.connect(kind.address, isolation_level=None, timeout=0)
    # SQLite refuses reads while the first connection builds the WAL's index, which must not be the forwarder's.
    session.execute("SELECT count(*) FROM orders").fetchone()
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 1)
        producer = broker.producer("order-service", database=database)
        for number in range(2_000):
            session.execute("BEGIN DEFERRED")
            session.execute("SELECT count(*) FROM orders").fetchone()
            session.execute("INSERT INTO orders VALUES (?, '')", (number,))
            producer.send(Message("orders", b"%d" % number), session=session)
            session.execute("COMMIT")
        session.close()
        eventually(lambda: broker.queue_range("orders", 0)[1] == 2_000)
    assert kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)]


def test_rows_that_are_left_at_the_close_are_deleted_together(tmp_path: Path) -> None:
    """Each commit of the forwarder on SQLite waits for the disk."""
    path, done = tmp_path / "orders.db", list[str]()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        connection.set_trace_callback(done.append)
        return connection

    database = Database(connect)
    database.create_table()
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        producer = broker.producer("order-service", database=database)
        session = sqlite3.connect(path)
        for number in range(1_200):
            producer.send(Message("orders", b"%d" % number), session=session)
        done.clear()
        session.commit()
        broker.close()
        assert session.execute("SELECT count(*) FROM txstore_outbox").fetchone() == (0,)
        session.close()
    assert (sum("DELETE" in sql for sql in done), sum("COMMIT" in sql for sql in done)) == (3, 1)


@pytest.mark.parametrize("kind", ["sqlalchemy postgres"], indirect=True)
def test_lost_connection_is_told_as_sqlalchemy_does(
    broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind
) -> None:
    """The row is inserted by the driver's own cursor. The session can be used again after a rollback."""
    with Session(kind.engine) as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with kind.engine.connect() as other:
            other.execute(text(f"SELECT pg_terminate_backend({pid}, 10000)"))
        with pytest.raises(OperationalError) as raised:
            producer.send(Message("orders", b"lost"), session=session)
        assert raised.value.connection_invalidated
        session.rollback()
        producer.send(Message("orders", b"1"), session=session)
        session.commit()
    eventually(lambda: bodies(broker) == [b"1"])


def test_status_tells_what_waits(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    """Rows that wait to be deleted are not counted: on SQLite they stay until the service's next transactions."""
    engine = create_engine(kind.engine.url, connect_args={"timeout": 60} if "sqlite" in kind.name else {})
    with Session(engine) as session:
        for number in range(3):
            producer.send(Message("orders", b"%d" % number), session=session)
        assert producer.outbox_status() == OutboxStatus(0, 0.0), "they are not committed"
        session.commit()
    eventually(lambda: producer.outbox_status() == OutboxStatus(0, 0.0))
    with engine.begin() as connection:  # Unlike a `Session`, it does not append at its commit what this test parks.
        producer.send(Message("orders", b"held", message_group="g"), session=connection)
        connection.execute(text("UPDATE txstore_outbox SET parked = 'by this test' WHERE message_group = 'g'"))
        producer.send(Message("orders", b"after", message_group="g"), session=connection)
    eventually(lambda: producer.outbox_status().rows == 1)
    before = producer.outbox_status().oldest_seconds
    eventually(lambda: producer.outbox_status().oldest_seconds > before)
    engine.dispose()


def test_many_threads_send_each_message_once(broker: EmbeddedBroker, producer: OutboxProducer, kind: Kind) -> None:
    engine = create_engine(kind.engine.url, connect_args={"timeout": 60} if "sqlite" in kind.name else {})

    def work(thread: int) -> None:
        for number in range(40):
            with Session(engine) as session:
                producer.send(Message("orders", b"%d-%d" % (thread, number)), session=session)
                session.rollback() if number % 4 == 3 else session.commit()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    expected = sorted(b"%d-%d" % (thread, number) for thread in range(8) for number in range(40) if number % 4 != 3)
    assert sorted(settled(broker, producer, kind.engine)) == expected
