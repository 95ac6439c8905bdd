"""Guards what only MariaDB does: snapshots that hide commits, locks of gaps, deadlocks that roll back everything,
packets, engines without transactions, and collations that do not tell A from a.

Each case would otherwise lose a message, publish one whose transaction is gone, or stop the forwarder.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import txstore
from tests.database.conftest import Kind, bodies, messages, new_kind
from tests.waiting import eventually
from txstore import AlreadyEndedError, EmbeddedBroker, InvalidOptionError, Message, errors
from txstore.database import Database, TableError
from txstore.database.outbox import OutboxProducer

pytestmark = pytest.mark.matrix


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind("sqlalchemy mariadb", tmp_path, request) as found:
        yield found


def test_check_that_came_first_is_found_by_a_session_with_an_older_snapshot(
    kind: Kind, database: Database, broker: EmbeddedBroker
) -> None:
    """REPEATABLE READ: the session's plain SELECT does not see the row that a check has committed meanwhile."""
    producer = broker.transaction_producer("g", database=database)
    with Session(kind.engine) as session:
        assert session.execute(text("SELECT count(*) FROM orders")).scalar() == 0
        block = producer.transaction(Message("t", b"x"), session=session)
        prepare: Any = producer._store_half

        def checked(*arguments: Any) -> Any:
            sent = prepare(*arguments)
            half = broker.store.half(sent.queue_offset)
            assert database.check_local_transaction(half) is txstore.LocalTransactionState.ROLLBACK
            return sent

        producer._store_half = checked
        with pytest.raises(AlreadyEndedError, match="a check rolled it back before"), block:
            raise AssertionError("this line must not be reached")
    assert list(kind.outcomes().values()) == ["rolled_back"]
    assert messages(broker, "t") == []


def test_deadlock_inside_a_block_rolls_the_message_back(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    """MariaDB rolls back the whole transaction, and the user's code continues in a new one."""
    producer = broker.transaction_producer("g", database=database)
    with closing(kind.connect()) as other, Session(kind.engine) as session:
        other.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'a')")
        other.commit()
        block = producer.transaction(Message("t", b"x"), session=session)
        block.__enter__()
        session.execute(text("UPDATE orders SET transaction_id = 'b' WHERE number = 1"))
        for number in range(100, 130):  # The one that changed less is rolled back.
            other.execute(f"INSERT INTO orders VALUES ({number}, 'other')")
        other.execute("UPDATE orders SET transaction_id = 'c' WHERE number = 2")
        waiting = threading.Thread(target=other.execute, args=("UPDATE orders SET number = 3 WHERE number = 1",))
        waiting.start()
        waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        eventually(lambda: kind.rows(waits) == [(1,)])
        with pytest.raises(OperationalError, match="Deadlock found"):
            session.execute(text("UPDATE orders SET transaction_id = 'b' WHERE number = 2"))
        waiting.join()
        other.rollback()
        session.execute(text("INSERT INTO orders VALUES (4, 'new transaction')"))
        with pytest.raises(AlreadyEndedError, match="rolled back inside"):
            block.__exit__(None, None, None)
    assert (kind.orders(), messages(broker, "t")) == ([1, 2], [])
    assert list(kind.outcomes().values()) == ["rolled_back"]


def test_senders_of_groups_do_not_deadlock_and_keep_their_order(
    kind: Kind, broker: EmbeddedBroker, producer: OutboxProducer
) -> None:
    """Reading the group's last number would lock the gap in which the others insert."""
    together, failed = threading.Barrier(6), list[BaseException]()

    def send(sender: int) -> None:
        try:
            together.wait()
            for number in range(30):
                with Session(kind.engine) as session, session.begin():
                    session.execute(text("SELECT count(*) FROM orders"))  # The snapshot.
                    session.execute(text(f"INSERT INTO orders VALUES ({sender * 1000 + number}, 'x')"))
                    body = b"%d %d" % (sender, number)
                    producer.send(Message("orders", body, message_group=f"group {sender % 3}"), session=session)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    eventually(lambda: len(bodies(broker)) == 180, 60)
    for sender in range(6):
        own = [body for body in bodies(broker) if body.startswith(b"%d " % sender)]
        assert own == [b"%d %d" % (sender, number) for number in range(30)]


def test_group_is_in_commit_order_also_with_an_older_snapshot(
    kind: Kind, broker: EmbeddedBroker, producer: OutboxProducer
) -> None:
    """The second transaction waits for the first one's lock, but its snapshot is from before."""
    with kind.engine.begin() as setup:
        setup.execute(text("INSERT INTO orders VALUES (1, 'a')"))
    with Session(kind.engine) as first, Session(kind.engine) as second:
        for session in (first, second):
            session.execute(text("SELECT * FROM orders"))
        for session, body in ((first, b"1"), (second, b"2")):
            session.execute(text("SELECT * FROM orders WHERE number = 1 FOR UPDATE"))
            for part in (b"a", b"b"):
                producer.send(Message("orders", body + part, message_group="g"), session=session)
            session.commit()
    eventually(lambda: bodies(broker) == [b"1a", b"1b", b"2a", b"2b"])


def test_open_transactions_of_others_do_not_stop_the_forwarder(
    kind: Kind, database: Database, broker: EmbeddedBroker, producer: OutboxProducer
) -> None:
    """A DELETE that scanned the table would wait for their rows."""
    with Session(kind.engine) as open_session, Session(kind.engine) as session:
        producer.send(Message("orders", b"open"), session=open_session)
        for number in range(20):
            producer.send(Message("orders", b"%d" % number), session=session)
        session.commit()
        eventually(lambda: len(bodies(broker)) == 20)
        eventually(lambda: kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)], 10)
        assert database.outbox() == []
        open_session.commit()
    eventually(lambda: len(bodies(broker)) == 21)


def test_cleaning_does_not_wait_for_open_transactions(kind: Kind, database: Database, producer: OutboxProducer) -> None:
    """Each send locks the row with the database's name, for others to read."""
    with Session(kind.engine) as session:
        producer.send(Message("orders", b"x"), session=session)
        with closing(kind.connect()) as other:
            other.execute("SET GLOBAL innodb_lock_wait_timeout = 2")
            try:
                assert database.clean(datetime.now(UTC)) == 0
            finally:
                other.execute("SET GLOBAL innodb_lock_wait_timeout = 50")


def test_message_larger_than_a_packet_is_refused_and_the_session_lives(
    kind: Kind, database: Database, tmp_path: Path
) -> None:
    """MariaDB would close the connection. Drivers write up to two bytes for each one."""
    with closing(kind.connect()) as other:
        other.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        kind.engine.dispose()
        with txstore.open(tmp_path / "large") as broker, Session(kind.engine) as session:
            broker.create_topic("orders", 1)
            producer = broker.producer("g", database=database)
            session.execute(text("INSERT INTO orders VALUES (1, 'a')"))
            for body in (b"x" * (1 << 20), b"\0" * (1 << 19)):
                with pytest.raises(errors.InvalidMessageError, match="max_allowed_packet of MariaDB allows 1048576"):
                    producer.send(Message("orders", body), session=session)
            for body in (b"x" * ((1 << 19) - 3000), b"\0'\\\"" * ((1 << 17) - 1000)):
                producer.send(Message("orders", body), session=session)
            session.commit()
            eventually(lambda: len(bodies(broker)) == 2)
    finally:
        with closing(kind.connect()) as other:
            other.execute("SET GLOBAL max_allowed_packet = 16777216")
    assert kind.orders() == [1]


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("txstore_transactions", "ENGINE = Aria"),
        ("txstore_inbox", "DROP PRIMARY KEY, ENGINE = MyISAM"),
        ("txstore_outbox", "DROP KEY txstore_outbox_groups, ENGINE = MyISAM"),
    ],
)
def test_tables_without_transactions_are_refused(
    table: str, change: str, kind: Kind, database: Database, broker: EmbeddedBroker
) -> None:
    with closing(kind.connect()) as other:
        other.execute(f"ALTER TABLE {table} {change}")
    message = rf"{table} in .* is stored by (Aria|MyISAM), .*\nhint: ALTER TABLE {table} ENGINE=InnoDB"
    with pytest.raises(TableError, match=message):
        broker.producer("g", database=Database(kind.source))
    block = broker.transaction_producer("h", database=Database(kind.source))
    with Session(kind.engine) as session, pytest.raises(TableError, match=message):
        block.transaction(Message("t", b"x"), session=session).__enter__()


def test_names_are_compared_byte_by_byte(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    """The server's own collation takes a for A, and ignores spaces at the end."""
    broker.create_topic("orders", 1)
    producer = broker.producer("p", database=database)
    (message,), _ = broker.read("orders", producer.send(Message("orders", b"x"), session=None).queue_id, 0)
    with Session(kind.engine) as session:
        for group in ("a", "A"):
            with database.inbox(group).handle(message, session) as first:
                assert first
        with database.inbox("a").handle(message, session) as first:
            assert not first
        for group in ("g", "G", "g ", "ü", "u"):
            producer.send(Message("orders", group.encode(), message_group=group), session=session)
        session.commit()
        groups = kind.rows("SELECT count(DISTINCT message_group), count(*) FROM txstore_outbox")
    assert groups in ([(5, 5)], [(0, 0)])
    eventually(lambda: len(bodies(broker)) == 6)


def test_one_handler_of_those_that_wait_follows_one_that_rolls_back(
    kind: Kind, database: Database, broker: EmbeddedBroker
) -> None:
    """The others get a deadlock, and the message is delivered to them again."""
    broker.create_topic("orders", 1)
    broker.producer("p").send(Message("orders", b"x"))
    (message,), _ = broker.read("orders", 0, 0)
    inbox, found = database.inbox("g"), list[object]()

    def handle() -> None:
        try:
            with Session(kind.engine) as session, inbox.handle(message, session) as first:
                found.append(first)
        except OperationalError as error:
            found.append(getattr(error.orig, "args", (None,))[0])

    waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    threads = [threading.Thread(target=handle) for _ in range(4)]
    with Session(kind.engine) as session, contextlib.suppress(KeyError), inbox.handle(message, session):
        for thread in threads:
            thread.start()
        eventually(lambda: kind.rows(waits) == [(4,)])
        raise KeyError
    for thread in threads:
        thread.join()
    assert found.count(True) == 1
    assert set(found) <= {True, False, 1213}
    handle()
    assert found[-1] is False


@pytest.mark.parametrize("lossy", [0, 2])
def test_server_that_may_lose_commits_is_named_once(
    lossy: int, kind: Kind, database: Database, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    setting = "innodb_flush_log_at_trx_commit"
    broker.create_topic("orders", 1)
    with closing(kind.connect()) as other, caplog.at_level(logging.WARNING, "txstore.database.outbox"):
        for value in (1, lossy):
            other.execute(f"SET GLOBAL {setting} = {value}")
            producer = broker.producer("g", database=Database(kind.address))
            for _ in range(2):
                with Session(kind.engine) as session, session.begin():
                    producer.send(Message("orders", b"x"), session=session)
            assert caplog.text.count("may lose commits with the power") == (0 if value == 1 else 1)
        other.execute(f"SET GLOBAL {setting} = 2")
    assert f"({setting} = {lossy})" in caplog.text


def test_other_servers_are_refused(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    producer = broker.producer("g", database=database)
    for is_mariadb, version, named in ((False, (8, 4, 0), "MySQL 8.4.0"), (True, (10, 5, 2), "MariaDB 10.5.2")):
        engine = create_engine(kind.engine.url)
        with Session(engine) as session:
            session.connection()
            engine.dialect.is_mariadb, engine.dialect.server_version_info = is_mariadb, version  # type: ignore[attr-defined]
            with pytest.raises(InvalidOptionError, match=f"unsupported database {named}\n.*MariaDB 10.6 or newer"):
                producer.send(Message("orders", b"x"), session=session)
            with pytest.raises(InvalidOptionError, match=f"unsupported database {named}"):
                Database(engine).create_table()
        engine.dispose()


def test_url_is_a_source(kind: Kind, broker: EmbeddedBroker) -> None:
    """As it is given to the command line. The password is not shown."""
    database = Database(kind.address)
    database.create_table()
    assert "***" in repr(Database(kind.address.replace("txstore@", "txstore:secret@")))
    broker.create_topic("orders", 1)
    producer = broker.producer("g", database=database)
    with Session(kind.engine) as session:
        producer.send(Message("orders", b"x"), session=session)
        session.commit()
    eventually(lambda: bodies(broker) == [b"x"])


def test_session_that_joined_a_transaction_publishes_after_its_end(
    kind: Kind, broker: EmbeddedBroker, producer: OutboxProducer
) -> None:
    with kind.engine.connect() as connection:
        for body, ends in ((b"rolled back", connection.rollback), (b"committed", connection.commit)):
            outer = connection.begin()
            with Session(connection, join_transaction_mode="rollback_only") as session:
                producer.send(Message("orders", body), session=session)
                session.commit()
            assert outer.is_active
            ends()
    eventually(lambda: bodies(broker) == [b"committed"])
