"""Guards wrong combinations of session, database and producer: an error says at once what to write; nothing is
stored.

The worst mistake would be silent: a check that reads another database answers "rolled back" after each crash.
"""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.database.conftest import Kind, entered, messages, run
from txstore import EmbeddedBroker, InvalidOptionError, LocalTransactionState, Message
from txstore.database import Database, TableError


def refuses(broker: EmbeddedBroker, call: Callable[[], Any], match: str) -> None:
    with pytest.raises(InvalidOptionError, match=match) as caught:
        call()
    assert "hint:" in str(caught.value)
    assert broker.transactions() == []
    assert broker.transactions(None) == [] or messages(broker, "t") == []


def enter(broker: EmbeddedBroker, database: Database, session: Any, *, group: str = "g") -> Callable[[], None]:
    def call() -> None:
        with (
            broker.transaction_producer(group, database=database) as producer,
            producer.transaction(Message("t", b"x"), session=session),
        ):
            raise AssertionError("this line must not be reached")

    return call


def test_no_table(kind: Kind, broker: EmbeddedBroker) -> None:
    async def pay() -> None:
        producer = broker.transaction_producer("g", database=Database(kind.source))
        async with kind.session() as session, entered(producer.transaction(Message("t", b"x"), session=session)):
            raise AssertionError("this line must not be reached")

    with pytest.raises(TableError, match=r"no table txstore_transactions in .*\nhint: call database.create_table\(\)"):
        run(pay())
    assert broker.transactions(None) == []


def test_no_table_for_an_inbox(kind: Kind, broker: EmbeddedBroker) -> None:
    inbox = Database(kind.source).inbox("g")
    broker.producer("g").send(Message("t", b"x"), queue_id=0)
    (message,), _ = broker.read("t", 0, 0)

    async def handle() -> None:
        async with kind.session() as session, entered(inbox.handle(message, session)):
            raise AssertionError("this line must not be reached")

    with pytest.raises(InvalidOptionError, match="no table txstore_inbox"):
        run(handle())


def test_missing_database_file_is_not_created(broker: EmbeddedBroker, tmp_path: Path) -> None:
    database = Database(tmp_path / "oders.db")
    connection = sqlite3.connect(tmp_path / "orders.db")
    refuses(broker, enter(broker, database, connection), "no table txstore_transactions in .*oders.db")
    assert not (tmp_path / "oders.db").exists()
    connection.close()


@pytest.mark.parametrize("table_there", [True, False])
def test_wrong_database(
    kind: Kind, database: Database, broker: EmbeddedBroker, tmp_path: Path, table_there: bool
) -> None:
    """The session uses one database, the checks would read another."""
    other = Database(tmp_path / "other.db")
    other.create_table()
    if not table_there:
        with sqlite3.connect(tmp_path / "other.db") as connection:
            connection.execute("DROP TABLE txstore_transactions")
        connection.close()
    producer = broker.transaction_producer("g", database=database)
    wrong = sqlite3.connect(tmp_path / "other.db")
    with (
        pytest.raises(TableError, match="another database than the one that checks read"),
        producer.transaction(Message("t", b"x"), session=wrong),
    ):
        raise AssertionError("this line must not be reached")
    assert (broker.transactions(), messages(broker, "t"), wrong.in_transaction) == ([], [], False)
    wrong.close()


def test_closed_sessions(broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    database = Database(tmp_path / "a.db")
    database.create_table()
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.close()
    refuses(broker, enter(broker, database, connection), "sqlite3 connection is closed")
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}", poolclass=NullPool)
    below = engine.connect()
    below.close()
    refuses(broker, enter(broker, database, below), "connection is closed")
    session = Session(engine, close_resets_only=False)
    session.close()
    with pytest.raises(Exception, match="closed"):
        enter(broker, database, session)()
    assert broker.transactions(None) == []
    server = request.getfixturevalue("postgres")
    plain = psycopg.connect(server.url("postgres"))
    plain.close()
    refuses(broker, enter(broker, database, plain), "psycopg connection is closed")


def test_session_that_would_commit_later_or_never(broker: EmbeddedBroker, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}", poolclass=NullPool)
    database = Database(engine)
    database.create_table()
    with Session(engine) as session, session.begin():
        refuses(broker, enter(broker, database, session), r"inside a begin\(\) block")
    with engine.begin() as connection:
        refuses(broker, enter(broker, database, connection), r"inside a begin\(\) block")
        refuses(broker, enter(broker, database, Session(connection)), "bound to a connection")
    with Session(engine) as session:
        session.begin_nested()
        refuses(broker, enter(broker, database, session), "savepoint")
    refuses(broker, enter(broker, database, Session()), "not bound to an engine")
    at_once = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(at_once) as session:
        refuses(broker, enter(broker, database, session), "AUTOCOMMIT")


def test_session_that_would_commit_later_on_postgres(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres")
    url = server.url(server.new())
    database = Database(url)
    database.create_table()
    with psycopg.connect(url) as connection:
        with connection.transaction():
            refuses(broker, enter(broker, database, connection), r"inside connection.transaction\(\)")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT nonsense")
        refuses(broker, enter(broker, database, connection), "transaction has failed")
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        refuses(broker, enter(broker, database, session), "AUTOCOMMIT")
    engine.dispose()


def test_async_session_needs_an_async_block(broker: EmbeddedBroker, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
    database = Database(engine)
    database.create_table()
    refuses(broker, enter(broker, database, AsyncSession(engine)), "async with")
    broker.producer("p").send(Message("t", b"x"), queue_id=0)
    (message,), _ = broker.read("t", 0, 0)
    with (
        pytest.raises(InvalidOptionError, match="async with"),
        database.inbox("g").handle(message, AsyncSession(engine)),
    ):
        raise AssertionError("this line must not be reached")
    asyncio.run(engine.dispose())


def test_invalid_session(broker: EmbeddedBroker, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    database = Database(engine)
    database.create_table()
    for wrong in (object(), "orders.db", engine, Session, sessionmaker(engine), 7):
        refuses(broker, enter(broker, database, wrong), "must be a connection or a session")
    engine.dispose()


def test_scoped_session_is_accepted(broker: EmbeddedBroker, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    database = Database(engine)
    database.create_table()
    producer = broker.transaction_producer("g", database=database)
    session = scoped_session(sessionmaker(engine))
    with producer.transaction(Message("t", b"x"), session=session):
        session.execute(text("CREATE TABLE x (y INT)"))
    assert len(messages(broker, "t")) == 1
    session.remove()
    engine.dispose()


def test_session_and_listener_both_given(broker: EmbeddedBroker, tmp_path: Path) -> None:
    def listener(message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    database = Database(tmp_path / "a.db")
    make: Any = broker.transaction_producer
    refuses(broker, lambda: make("g", check_listener=listener, database=database), "both would answer")
    with_listener = broker.transaction_producer("g", check_listener=listener)
    connection = sqlite3.connect(tmp_path / "a.db")
    refuses(broker, lambda: with_listener.transaction(Message("t", b"x"), session=connection), "has a listener")
    without = broker.transaction_producer("h")
    refuses(
        broker, lambda: without.transaction(Message("t", b"x"), session=connection), "has no checker and no database"
    )
    producer = broker.transaction_producer("i", database=database)
    refuses(broker, lambda: producer.add_checker(listener), "which answers its checks")
    refuses(broker, lambda: producer.transaction(Message("t", b"x")), "its transactions need a session")
    refuses(broker, lambda: producer.send_in_transaction(Message("t", b"x")), "need a session")
    for wrong in (Database, connection, "a.db"):
        refuses(broker, lambda wrong=wrong: make("j", database=wrong), "expected a txstore.database.Database")  # type: ignore[misc]
    connection.close()


def test_invalid_source(broker: EmbeddedBroker) -> None:
    in_memory = [":memory:", "", "file:x?mode=memory", create_engine("sqlite://"), create_engine("sqlite:///:memory:")]
    for wrong in in_memory:
        refuses(broker, lambda wrong=wrong: Database(wrong), "in memory")  # type: ignore[misc]
    connection = sqlite3.connect(":memory:")
    for other in (7, connection, None):
        refuses(broker, lambda other=other: Database(other), "cannot be opened from")  # type: ignore[misc]
    connection.close()


def test_invalid_times_for_cleaning(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    for wrong in (datetime(2020, 1, 1), datetime.now(UTC) + timedelta(hours=1)):
        with pytest.raises(InvalidOptionError, match="time zone"):
            database.clean(wrong)


def test_importing_loads_no_driver() -> None:
    code = (
        "import sys, txstore, txstore.database; "
        "print([name for name in ('sqlalchemy', 'psycopg', 'greenlet') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
