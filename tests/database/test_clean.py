"""Guards cleaning of the table of local transactions: old rows are removed like the log.

The outcome of a removed row is unknown, not guessed.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import txstore
from tests.database.conftest import SMALL, Kind, entered, run
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message
from txstore.database import DDL, DDL_MARIADB, DDL_SQLITE, Database, TableError

HOUR = timedelta(hours=1)


def paid(kind: Kind, broker: EmbeddedBroker, database: Database) -> str:
    """A transaction with a committed row and message."""

    async def pay() -> str:
        with broker.transaction_producer("g", database=database) as producer:
            async with (
                kind.session() as session,
                entered(producer.transaction(Message("t", b"x"), session=session)) as tx,
            ):
                pass
        return str(tx.transaction_id)

    return str(run(pay()))


def test_rows_are_removed_by_their_age(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    moment = datetime.now(UTC) - HOUR
    first = paid(kind, broker, database)
    second = paid(kind, broker, database)
    with _writing(kind) as execute:
        # Set here: two readings of a clock may be in one millisecond.
        old = int(moment.timestamp() * 1000) - 1
        execute(f"UPDATE txstore_transactions SET created_ms = {old} WHERE transaction_id <> '{second}'")
    assert database.clean(moment - HOUR) == 0
    assert database.clean(moment) == 1
    assert (set(kind.outcomes()), first != second) == ({second}, True)
    assert database.clean(moment) == 0
    paid(kind, broker, database)  # The row with its identity is still there.


def test_many_rows_are_removed_in_steps_and_young_ones_stay(kind: Kind, database: Database) -> None:
    young = int(datetime.now(UTC).timestamp() * 1000) + 3_600_000
    ages = [(number, young if number % 4 == 0 else 1) for number in range(2500)]
    with _writing(kind) as execute:
        rows = ", ".join(f"('id {number:04}', 'committed', {age})" for number, age in ages)
        execute(f"INSERT INTO txstore_transactions VALUES {rows}")
        rows = ", ".join(f"('group {number % 2}', 'id {number:04}', {age})" for number, age in ages)
        execute(f"INSERT INTO txstore_inbox VALUES {rows}")
    assert database.clean(datetime.now(UTC)) == 2 * 1875
    with _writing(kind) as execute:
        left = {
            table: list(execute(f"SELECT created_ms FROM {table}"))
            for table in ("txstore_transactions", "txstore_inbox")
        }
    assert {age for (age,) in left["txstore_inbox"]} == {young}
    ours = 3 if kind.address.startswith("mysql") else 2
    assert (
        len(left["txstore_inbox"]) == len(left["txstore_transactions"]) - ours == 625
    )  # Two name the database and the version; on MariaDB, one has the time of cleaning.


@contextmanager
def _writing(kind: Kind) -> Iterator[Any]:
    connection = kind.connect()
    yield connection.execute
    connection.commit()
    connection.close()


def test_missing_row_of_that_age_is_unknown(kind: Kind, database: Database, broker: EmbeddedBroker) -> None:
    """A discarded transaction may be resumed after its row was cleaned: its outcome is unknown, and it is not
    guessed.
    """
    producer = broker.transaction_producer("h")
    sent = broker.prepare(Message("t", b"x"), producer.send(Message("t", b"y")).queue_id, "h", 0)
    half = txstore.HalfMessage(broker.store.half(sent.queue_offset))
    with _writing(kind) as execute:
        later = int((half.born_timestamp + 2 * HOUR).timestamp() * 1000)
        execute(f"UPDATE txstore_transactions SET created_ms = {later}")
    with pytest.raises(TableError, match="rows of its age were cleaned"):
        database.check_local_transaction(half)
    assert kind.outcomes() == {}


@pytest.mark.parametrize("portable", [False, True])
def test_migration_creates_the_same_table(kind: Kind, broker: EmbeddedBroker, portable: bool) -> None:
    with _writing(kind) as execute:
        portably = DDL if kind.address.startswith("postgresql") or portable else DDL_SQLITE
        for statement in DDL_MARIADB if kind.address.startswith("mysql") else portably:
            execute(statement)
    for _ in range(2):
        database = Database(kind.source)
        paid(kind, broker, database)
        database.create_table()
    assert len(kind.outcomes()) == 2


def test_broker_cleans_by_itself(
    kind: Kind, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Removes rows older than `file_reserved_time`; the failure of a database is logged."""
    with txstore.open(tmp_path / "other", file_reserved_time=3600, transaction_check_interval=3600, **SMALL) as broker:
        producer = broker.transaction_producer("g", database=database)
        paid(kind, broker, database)
        broker._cleaning.round()
        eventually(lambda: not broker._parts.pool.has(("clean", producer.number)))
        assert len(kind.outcomes()) == 1
        with _writing(kind) as execute:
            execute("UPDATE txstore_transactions SET created_ms = created_ms - 9000000 WHERE outcome = 'committed'")
        broker._cleaning.round()
        eventually(lambda: kind.outcomes() == {})
        with _writing(kind) as execute:
            execute("DROP TABLE txstore_transactions")
        eventually(lambda: not broker._parts.pool.has(("clean", producer.number)))
        with caplog.at_level(logging.WARNING, "txstore.broker"):
            broker._cleaning.round()
            eventually(lambda: "a database could not be cleaned" in caplog.text)
        assert not producer.closed


class Seen:
    """A database that only returns the time from which it should be cleaned."""

    def __init__(self) -> None:
        self.before: list[datetime] = []

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def transaction(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def clean(self, before: datetime) -> int:
        self.before.append(before)
        return 0


def test_oldest_pending_transaction_limits_the_cleaning(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Seen()
    producer = broker.transaction_producer("g", database=database)
    broker._cleaning.round()
    eventually(lambda: len(database.before) == 1)
    eventually(lambda: not broker._parts.pool.has(("clean", producer.number)))

    class Old:
        """The store, with a transaction that has been pending for a hundred hours."""

        def halves_waiting(self, after: int, limit: int) -> list[Any]:
            return [SimpleNamespace(stored_age_ms=100 * 3_600_000)]

    with monkeypatch.context() as patch:
        patch.setattr(broker._cleaning, "_store", Old())
        broker._cleaning.round()
    eventually(lambda: len(database.before) == 2)
    ages = [datetime.now(UTC) - before for before in database.before]
    assert [round(age / HOUR) for age in ages] == [72 + 1, 100 + 1]
