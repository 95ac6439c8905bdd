"""Guards round trips to PostgreSQL: a block's statements go together with BEGIN and COMMIT.

Whatever the user does with the connection changes no outcome.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus

from tests.database.conftest import Kind, messages, new_kind
from txstore import AlreadyEndedError, EmbeddedBroker, Message, TransactionProducer
from txstore.database import Database

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def kind(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kind]:
    with new_kind("psycopg", tmp_path, request) as found:
        Database(found.source).create_table()
        yield found


@pytest.fixture
def producer(kind: Kind, broker: EmbeddedBroker) -> TransactionProducer:
    return broker.transaction_producer("g", database=Database(kind.source))


@pytest.fixture
def connection(kind: Kind) -> Iterator[Connection]:
    with contextlib.closing(psycopg.connect(kind.address)) as opened:
        yield opened


def pay(producer: TransactionProducer, connection: Connection, number: int) -> None:
    with producer.transaction(Message("t", b"x"), session=connection) as tx:
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (number, tx.transaction_id))


def test_block_adds_no_round_trip_to_begin_and_commit(
    producer: TransactionProducer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay(producer, connection, 1)
    waited: list[object] = []
    wait: Callable[..., Any] = connection.wait

    def counting(work: Any, *more: Any, **options: Any) -> Any:
        waited.append(work)
        return wait(work, *more, **options)

    monkeypatch.setattr(connection, "wait", counting)
    pay(producer, connection, 2)
    assert len(waited) == 3, "BEGIN with the row, the insert, COMMIT with the query of the row"
    assert connection.pgconn.pipeline_status == PipelineStatus.OFF


@pytest.mark.parametrize("how", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_prepared_statements_may_be_dropped_between_blocks(
    how: str, producer: TransactionProducer, connection: Connection, kind: Kind, broker: EmbeddedBroker
) -> None:
    for number in range(3):
        pay(producer, connection, number)
        connection.autocommit = True
        connection.execute(how)
        connection.autocommit = False
    assert (kind.orders(), len(messages(broker, "t")), broker.transactions()) == ([0, 1, 2], 3, [])


def test_prepared_statements_may_be_dropped_inside(
    producer: TransactionProducer, connection: Connection, kind: Kind, broker: EmbeddedBroker
) -> None:
    """psycopg drops all prepared statements when a savepoint is rolled back."""
    for number in range(3):
        with producer.transaction(Message("t", b"x"), session=connection) as tx:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (number, tx.transaction_id), prepare=True)
            with contextlib.suppress(KeyError), connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s, %s)", (number + 10, tx.transaction_id))
                raise KeyError
            connection.execute("DEALLOCATE ALL")
    assert (kind.orders(), len(messages(broker, "t")), broker.transactions()) == ([0, 1, 2], 3, [])


def test_another_block_that_rolled_back_is_not_taken_for_this_one(
    producer: TransactionProducer, connection: Connection, kind: Kind, broker: EmbeddedBroker
) -> None:
    """The first block's row was rolled back; the transaction at its end is the second's."""
    first = producer.transaction(Message("t", b"1"), session=connection)
    second = producer.transaction(Message("t", b"2"), session=connection)
    first.__enter__()
    connection.rollback()
    second.__enter__()
    for block in (
        first,
        second,
    ):  # The first one's failure rolls the session back, so the second's row is removed, too.
        with pytest.raises(AlreadyEndedError, match="rolled back inside"):
            block.__exit__(None, None, None)
    assert (messages(broker, "t"), broker.transactions()) == ([], [])
    assert set(kind.outcomes().values()) == {"rolled_back"}


@pytest.mark.parametrize("setting", ["prepare_threshold", "isolation_level", "read_only", "deferrable"])
def test_settings_of_the_connection_apply(
    setting: str, producer: TransactionProducer, connection: Connection, kind: Kind, broker: EmbeddedBroker
) -> None:
    values: dict[str, Any] = {
        "prepare_threshold": None,
        "isolation_level": psycopg.IsolationLevel.SERIALIZABLE,
        "read_only": False,
        "deferrable": True,
    }
    setattr(connection, setting, values[setting])
    for number in range(7):
        with producer.transaction(Message("t", b"x"), session=connection) as tx:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (number, tx.transaction_id))
            (level,) = connection.execute("SHOW transaction_isolation").fetchone() or ("",)
            assert level == ("serializable" if setting == "isolation_level" else "read committed")
    prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'txstore%'").fetchone()
    assert prepared == (0,), "only a plain BEGIN goes together with the row"
    assert (kind.orders(), len(messages(broker, "t"))) == (list(range(7)), 7)


def test_statement_that_fails_leaves_no_pipeline_open(
    producer: TransactionProducer, connection: Connection, kind: Kind, broker: EmbeddedBroker
) -> None:
    pay(producer, connection, 1)
    connection.execute("ALTER TABLE txstore_transactions RENAME TO away")
    connection.commit()
    with pytest.raises(Exception, match="another database"):
        pay(producer, connection, 2)
    assert connection.pgconn.pipeline_status == PipelineStatus.OFF
    assert connection.info.transaction_status == TransactionStatus.IDLE
    connection.execute("ALTER TABLE away RENAME TO txstore_transactions")
    connection.commit()
    pay(producer, connection, 3)
    assert (kind.orders(), len(messages(broker, "t")), broker.transactions()) == ([1, 3], 2, [])


def test_deferred_constraint_that_fails_rolls_both_back(
    producer: TransactionProducer, connection: Connection, kind: Kind, broker: EmbeddedBroker
) -> None:
    connection.execute("CREATE TEMP TABLE late (x INT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    connection.commit()
    with pytest.raises(psycopg.errors.UniqueViolation), producer.transaction(Message("t", b"x"), session=connection):
        connection.execute("INSERT INTO late VALUES (1), (1)")
    assert (messages(broker, "t"), broker.transactions()) == ([], [])
    pay(producer, connection, 1)
    assert (kind.orders(), len(messages(broker, "t"))) == ([1], 1)
