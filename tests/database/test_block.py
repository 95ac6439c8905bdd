"""Guards a block with a database: row and message commit both or neither, whatever fails, for every kind of
session.

Each test is one row of docs/publish/database.md's table of failures.
"""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError as SqlAlchemyOperationalError

from tests.database.conftest import Kind, commit, entered, messages, new_kind, rollback, run
from txstore import (
    AlreadyEndedError,
    EmbeddedBroker,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionState,
)
from txstore.database import Database
from txstore.errors import DiskFullError
from txstore.testing import FakeBroker

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


@pytest.fixture
def producer(broker: EmbeddedBroker, database: Database) -> TransactionProducer:
    return broker.transaction_producer("order-service", database=database)


def begin(producer: TransactionProducer, message: Message, session: Any) -> Any:
    return entered(producer.transaction(message, session=session))


def test_block_commits_both_at_its_end(kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer) -> None:
    async def pay() -> str:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            assert messages(broker, "t") == []
        assert tx.state is COMMIT
        return str(tx.transaction_id)

    name = run(pay())
    assert (kind.orders(), kind.outcomes(), messages(broker, "t")) == ([1], {name: "committed"}, [name])


def test_block_commits_several_messages(kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer) -> None:
    async def pay() -> list[str]:
        names = []
        async with kind.session() as session:
            several = [Message("t", b"1"), Message("u", b"2"), Message("t", b"3")]
            async with entered(producer.transaction(several, session=session)) as tx:
                await kind.order(session, 1, tx.transaction_id)
            names.append(tx.transaction_id)
            with contextlib.suppress(KeyError):
                async with entered(producer.transaction(several, session=session)) as tx:
                    await kind.order(session, 2, tx.transaction_id)
                    raise KeyError("no such customer")
            names.append(tx.transaction_id)
        return names

    first, second = run(pay())
    assert (kind.orders(), kind.outcomes()) == ([1], {first: "committed", second: "rolled_back"})
    assert (len(messages(broker, "t")), len(messages(broker, "u"))) == (2, 1)


def test_exception_rolls_both_back_at_once(kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer) -> None:
    async def pay() -> Any:
        async with kind.session() as session:
            with contextlib.suppress(KeyError):
                async with begin(producer, Message("t", b"x"), session) as tx:
                    await kind.order(session, 1, tx.transaction_id)
                    raise KeyError("no such customer")
            # The session can be used further.
            async with begin(producer, Message("t", b"y"), session) as second:
                await kind.order(session, 2, second.transaction_id)
            return tx, second

    tx, second = run(pay())
    assert (tx.state, tx.error) == (ROLLBACK, "KeyError: 'no such customer'")
    assert kind.orders() == [2]
    assert kind.outcomes() == {tx.transaction_id: "rolled_back", second.transaction_id: "committed"}
    assert messages(broker, "t") == [second.transaction_id]
    assert broker.transactions() == []


def test_requested_rollback_rolls_both_back(kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer) -> None:
    async def pay() -> Any:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            tx.rollback()
        return tx

    assert run(pay()).state is ROLLBACK
    assert (kind.orders(), messages(broker, "t"), broker.transactions()) == ([], [], [])


def test_work_before_the_block_is_committed_with_it(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer
) -> None:
    async def pay() -> None:
        async with kind.session() as session:
            if kind.name != "psycopg autocommit":
                await kind.order(session, 1, "before")
            async with begin(producer, Message("t", b"x"), session) as tx:
                await kind.order(session, 2, tx.transaction_id)

    run(pay())
    assert kind.orders()[-1] == 2
    assert len(messages(broker, "t")) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_commit_inside_decides_whatever_follows(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer, fails: bool
) -> None:
    async def pay() -> None:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            await commit(session)
            if fails:
                raise KeyError

    with contextlib.suppress(KeyError):
        run(pay())
    assert (kind.orders(), len(messages(broker, "t"))) == ([1], 1)
    assert list(kind.outcomes().values()) == ["committed"]


def test_commit_inside_cannot_be_undone(kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer) -> None:
    async def pay() -> None:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await commit(session)
            tx.rollback()

    with pytest.raises(AlreadyEndedError, match="committed inside"):
        run(pay())
    assert len(messages(broker, "t")) == 1


def test_rollback_inside_rolls_the_message_back_and_raises(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer
) -> None:
    async def pay() -> None:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            await rollback(session)
            if kind.name not in ("psycopg autocommit", "asyncpg", "django sqlite"):  # They would commit it at once.
                await kind.order(session, 2, tx.transaction_id)

    with pytest.raises(AlreadyEndedError, match="savepoint"):
        run(pay())
    assert (kind.orders(), messages(broker, "t"), broker.transactions()) == ([], [], [])
    assert list(kind.outcomes().values()) == ["rolled_back"]


def test_commit_that_fails_rolls_the_message_back(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deferred constraint, or a connection lost before the commit: the row decides."""

    async def pay() -> None:
        async with kind.session() as session:
            block: Any = producer.transaction(Message("t", b"x"), session=session)
            handle = block._handle
            real, fails = handle.commit, [True]

            async def failing() -> None:
                if fails.pop() if fails else False:
                    raise OSError("the server went away")
                await real()

            monkeypatch.setattr(handle, "commit", failing)
            async with entered(block) as tx:
                await kind.order(session, 1, tx.transaction_id)

    with pytest.raises(OSError, match="went away"):
        run(pay())
    assert (kind.orders(), messages(broker, "t"), broker.transactions()) == ([], [], [])


def test_commit_that_succeeded_though_it_raised_is_found(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke after the commit: the caller got no answer, but the row exists."""

    async def pay() -> None:
        async with kind.session() as session:
            block: Any = producer.transaction(Message("t", b"x"), session=session)
            handle = block._handle
            real, fails = handle.commit, [True]

            async def failing() -> None:
                await real()
                if fails.pop() if fails else False:
                    raise OSError("the answer was lost")

            monkeypatch.setattr(handle, "commit", failing)
            async with entered(block) as tx:
                await kind.order(session, 1, tx.transaction_id)

    with pytest.raises(OSError, match="lost"):
        run(pay())
    assert (kind.orders(), len(messages(broker, "t")), broker.transactions()) == ([1], 1, [])


def test_check_decides_when_the_session_is_lost(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer, database: Database
) -> None:
    async def pay() -> Any:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            tx._handle.rollback = tx._handle.commit = _gone
            raise KeyError

    with contextlib.suppress(KeyError):
        run(pay())
    (waiting,) = broker.transactions()
    assert not waiting.running
    half = broker.store.half(waiting.half_queue_offset)
    assert database.check_local_transaction(half) is ROLLBACK
    assert database.check_local_transaction(half) is ROLLBACK
    assert kind.orders() == []


async def _gone() -> None:
    raise OSError("gone")


def test_message_whose_end_fails_is_committed_by_a_check(
    kind: Kind,
    broker: EmbeddedBroker,
    producer: TransactionProducer,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise DiskFullError("full")

    async def pay() -> Any:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            monkeypatch.setattr(producer, "_end", full)
        return tx

    assert "full" in run(pay()).error
    (waiting,) = broker.transactions()
    assert database.check_local_transaction(broker.store.half(waiting.half_queue_offset)) is COMMIT
    assert kind.orders() == [1]


def test_local_transaction_after_the_check_fails_on_the_key(
    kind: Kind,
    broker: EmbeddedBroker,
    producer: TransactionProducer,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between half message and row it stalled so long that a check decided for its producer."""
    prepare = producer._store_half

    def stalled(*arguments: Any) -> Any:
        sent = prepare(*arguments)
        if database.check_local_transaction(broker.store.half(sent.queue_offset)) is ROLLBACK:
            broker.end_transaction(sent, ROLLBACK)
        return sent

    async def pay() -> None:
        async with kind.session() as session:
            monkeypatch.setattr(producer, "_store_half", stalled)
            if "sqlite" in kind.name:  # There the check would wait for the block's lock: it comes in between.
                monkeypatch.setattr("txstore.database.sqlite.SqliteHandle.begin", _nothing)
                monkeypatch.setattr("txstore.database.aiosqlite.AiosqliteHandle.begin", _nothing)
            if kind.name == "django sqlite":
                monkeypatch.setattr("txstore.database.django.DjangoHandle.begin", _nothing)
            async with begin(producer, Message("t", b"x"), session) as tx:
                await kind.order(session, 1, tx.transaction_id)

    with pytest.raises(AlreadyEndedError, match="a check rolled it back before") as caught:
        run(pay())
    assert caught.value.outcome is TransactionState.ROLLED_BACK
    assert (kind.orders(), messages(broker, "t"), broker.transactions()) == ([], [], [])


async def _nothing(self: Any) -> None:
    """Begins no transaction."""


def test_resent_message_is_not_handled_twice(kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer) -> None:
    async def pay() -> Any:
        async with kind.session() as session:
            async with begin(producer, Message("t", b"x"), session) as tx:
                await kind.order(session, 1, tx.transaction_id)
            async with begin(producer, tx.message, session):
                raise AssertionError("it must not come so far")

    with pytest.raises(AlreadyEndedError) as caught:
        run(pay())
    assert caught.value.outcome is TransactionState.COMMITTED
    assert (len(messages(broker, "t")), broker.transactions()) == (1, [])


def test_resumed_transaction_is_answered_by_its_row(
    kind: Kind,
    broker: EmbeddedBroker,
    producer: TransactionProducer,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise DiskFullError("full")

    async def pay() -> Any:
        async with kind.session() as session:
            with monkeypatch.context() as patch:
                async with begin(producer, Message("t", b"x"), session) as tx:
                    patch.setattr(producer, "_end", full)
            return tx

    name = run(pay()).transaction_id
    broker.discard(name)
    broker.resume(name)
    (waiting,) = broker.transactions()
    assert waiting.transaction_id == name
    assert database.check_local_transaction(broker.store.half(waiting.half_queue_offset)) is COMMIT


def test_fake_broker_accepts_a_database_too(kind: Kind, database: Database) -> None:
    fake = FakeBroker()
    producer = fake.transaction_producer("g", database=database)

    async def pay() -> Any:
        async with kind.session() as session:
            async with begin(producer, Message("t", b"x"), session) as tx:
                await kind.order(session, 1, tx.transaction_id)
            with contextlib.suppress(KeyError):
                async with begin(producer, Message("t", b"y"), session) as failed:
                    failed._handle.rollback = failed._handle.commit = _gone
                    raise KeyError
        return tx, failed

    tx, failed = run(pay())
    assert fake.transaction(failed.transaction_id).state == "pending"
    fake.clock.advance(6)
    assert fake.run_checks() == 1
    # A connection that could not be rolled back may still be committed by its own `with`: the message follows the row.
    assert fake.transaction(failed.transaction_id).state == kind.outcomes()[failed.transaction_id]
    assert fake.transaction(tx.transaction_id).state == "committed"


class StopError(BaseException):
    """Like KeyboardInterrupt: the program wants no more database work."""


def test_exception_that_ends_the_program_leaves_it_to_a_check(
    kind: Kind, broker: EmbeddedBroker, producer: TransactionProducer, database: Database
) -> None:
    async def pay() -> None:
        async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
            await kind.order(session, 1, tx.transaction_id)
            raise StopError

    with pytest.raises(StopError):
        run(pay())
    (waiting,) = broker.transactions()
    assert (waiting.running, kind.orders(), kind.outcomes()) == (False, [], {})
    assert database.check_local_transaction(broker.store.half(waiting.half_queue_offset)) is ROLLBACK


@pytest.mark.parametrize("name", ["sqlalchemy sqlite async", "psycopg async", "sqlalchemy asyncpg"])
def test_cancelled_task_leaves_it_to_a_check(
    name: str, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with new_kind(name, tmp_path, request) as kind:
        database = Database(kind.source)
        database.create_table()
        producer = broker.transaction_producer("g", database=database)
        ordered = asyncio.Event()

        async def pay() -> None:
            async with kind.session() as session, begin(producer, Message("t", b"x"), session) as tx:
                await kind.order(session, 1, tx.transaction_id)
                ordered.set()
                await asyncio.sleep(60)

        async def cancelled() -> None:
            task = asyncio.create_task(pay())
            done, _ = await asyncio.wait(
                (task, asyncio.create_task(ordered.wait())), return_when=asyncio.FIRST_COMPLETED
            )
            assert task not in done, task
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        run(cancelled())
        (waiting,) = broker.transactions()
        assert (waiting.running, kind.orders()) == (False, [])
        assert database.check_local_transaction(broker.store.half(waiting.half_queue_offset)) is ROLLBACK


@pytest.mark.parametrize("level", ["", None, "DEFERRED", "EXCLUSIVE"])
def test_every_transaction_mode_of_sqlite(level: Any, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """None is the mode in which each statement commits by itself; its users write `with db:` inside."""
    database = Database(tmp_path / "a.db")
    database.create_table()
    producer = broker.transaction_producer("g", database=database)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=level)) as db:
        db.execute("CREATE TABLE orders (number INTEGER)")
        with producer.transaction(Message("t", b"x"), session=db):
            db.execute("INSERT INTO orders VALUES (1)")
        with producer.transaction(Message("t", b"x"), session=db), db:
            db.execute("INSERT INTO orders VALUES (2)")
        with contextlib.suppress(KeyError), producer.transaction(Message("t", b"x"), session=db):
            db.execute("INSERT INTO orders VALUES (3)")
            raise KeyError
        assert not db.in_transaction
        assert db.execute("SELECT number FROM orders").fetchall() == [(1,), (2,)]
    assert (len(messages(broker, "t")), broker.transactions()) == (2, [])


@pytest.mark.parametrize("name", ["sqlite3", "sqlalchemy sqlite", "sqlalchemy sqlite async"])
def test_locked_database_leaves_nothing_pending(
    name: str, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with new_kind(name, tmp_path, request) as kind:
        database = Database(kind.source)
        database.create_table()
        producer = broker.transaction_producer("g", database=database)

        async def pay() -> None:
            async with kind.session() as session:
                if name == "sqlite3":
                    session.execute("PRAGMA busy_timeout = 50")
                else:
                    done = session.execute(text("PRAGMA busy_timeout = 50"))
                    if done is not None and asyncio.iscoroutine(done):
                        await done
                async with begin(producer, Message("t", b"x"), session):
                    raise AssertionError("it must not come so far")

        with contextlib.closing(sqlite3.connect(kind.address)) as other:
            other.execute("BEGIN IMMEDIATE")
            raised = sqlite3.OperationalError if name == "sqlite3" else SqlAlchemyOperationalError
            with pytest.raises(raised, match="database is locked"):
                run(pay())
        assert (broker.transactions(), messages(broker, "t")) == ([], [])


def test_row_on_sqlite_bypasses_sqlalchemy(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """SQLAlchemy's own work would take as long as the insert; its events show only the user's statements."""
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    database = Database(engine)
    database.create_table()
    producer = broker.transaction_producer("g", database=database)
    heard: list[str] = []
    with engine.connect() as connection:
        connection.connection.driver_connection.row_factory = lambda cursor, row: {"rows": row}  # type: ignore[union-attr]
        event.listen(connection, "before_cursor_execute", lambda *called: heard.append(called[2]))
        with producer.transaction(Message("t", b"x"), session=connection) as tx:
            connection.execute(text("CREATE TABLE mine (number INTEGER)"))
    assert heard == ["CREATE TABLE mine (number INTEGER)"]
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as db:
        rows = db.execute("SELECT outcome FROM txstore_transactions WHERE transaction_id = ?", (tx.transaction_id,))
        assert rows.fetchall() == [("committed",)]
    assert messages(broker, "t") == [tx.transaction_id]
    engine.dispose()
