"""Guards `Database.reconcile` and `txstore tx reconcile`: they name exactly the transactions of blocks that a database
has committed and whose message a restored, damaged or shortened log does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
from tests.copies import killed_copy
from tests.database.conftest import SMALL, Kind, entered, new_kind, run
from tests.unit.conftest import Run
from tests.unit.conftest import run as command_line
from txstore import BrokerRefusedError, EmbeddedBroker, LocalTransactionState, Message, TransactionState
from txstore.database import Database

__all__ = ["command_line"]

KINDS = ["sqlite3", "psycopg", pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix)]
ORDERS = int(os.environ.get("TXSTORE_RECONCILED", "60"))
TOPICS = ("orders", "bills")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as made:
        yield made


class Shop:
    """Transactions of one database and one store."""

    def __init__(self, kind: Kind, broker: EmbeddedBroker, database: Database, seed: int) -> None:
        self.kind = kind
        self.broker = broker
        self.producer = broker.transaction_producer("order-service", database=database)
        self.chance = random.Random(seed)
        self.committed: list[str] = []
        self.number = 0

    def order(self, *, commits: bool | None = None) -> str:
        """One transaction, which commits most of the time."""
        return str(run(self._order(self.chance.random() < 0.7 if commits is None else commits)))

    async def _order(self, commits: bool) -> str:
        self.number += 1
        count = self.chance.choice([1, 1, 1, 3])
        messages = [Message(self.chance.choice(TOPICS), b"order %d" % self.number) for _ in range(count)]
        async with self.kind.session() as session:
            block = self.producer.transaction(messages[0] if count == 1 else messages, session=session)
            with contextlib.suppress(KeyError):
                async with entered(block) as tx:
                    await self.kind.order(session, self.number, tx.transaction_id)
                    if not commits:
                        raise KeyError
        if commits:
            self.committed.append(block.transaction_id)
        return str(block.transaction_id)


@pytest.fixture
def shop(kind: Kind, broker: EmbeddedBroker, database: Database) -> Shop:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return Shop(kind, broker, database, seed)


def ids(missing: Any) -> list[str]:
    return [one.transaction_id for one in missing]


def test_older_copy_of_a_store_lacks_exactly_the_later_messages(
    shop: Shop, broker: EmbeddedBroker, database: Database, tmp_path: Path
) -> None:
    cuts = sorted(shop.chance.sample(range(ORDERS), 4))
    before: list[int] = []
    for number in range(ORDERS):
        if number in cuts:
            killed_copy(tmp_path / "store", tmp_path / f"copy-{len(before)}")
            before.append(len(shop.committed))
        shop.order()
    assert database.reconcile(broker) == []
    for copy, committed in enumerate(before):
        with txstore.open(tmp_path / f"copy-{copy}", transaction_check_interval=3600, **SMALL) as restored:
            missing = database.reconcile(restored)
            assert {one.state for one in missing} <= {None}
            lost = shop.committed[committed:] if committed or cuts[copy] else []  # An empty log has no first message.
            assert sorted(ids(missing)) == sorted(lost)
            assert [one.committed_timestamp for one in missing] == sorted(one.committed_timestamp for one in missing)
    assert database.reconcile(broker) == []


def test_message_that_waits_for_its_end_is_not_missing(
    shop: Shop, broker: EmbeddedBroker, database: Database, tmp_path: Path
) -> None:
    """A copy has the half messages, but not the ends: a check asks the database."""
    shop.order(commits=True)
    copied = tmp_path / "copied"

    async def cut() -> None:
        async with shop.kind.session() as session:
            block = shop.producer.transaction(Message("orders", b"cut"), session=session)
            async with entered(block) as tx:
                await shop.kind.order(session, 1000, tx.transaction_id)
                killed_copy(tmp_path / "store", copied)

    run(cut())
    lost = [shop.order(commits=True)]
    options: dict[str, Any] = {"transaction_timeout": 0, "transaction_check_interval": 3600, **SMALL}
    with txstore.open(copied, **options) as restored:
        assert len(restored.transactions()) == 1
        assert ids(database.reconcile(restored)) == lost


def test_message_that_waits_for_its_time_is_not_missing(shop: Shop, broker: EmbeddedBroker, database: Database) -> None:
    async def later() -> None:
        async with shop.kind.session() as session:
            message = Message("orders", b"later", deliver_at=datetime.now(UTC) + timedelta(hours=1))
            async with entered(shop.producer.transaction(message, session=session)) as tx:
                await shop.kind.order(session, 1000, tx.transaction_id)

    run(later())
    assert broker.store.timed_messages() == 1
    assert database.reconcile(broker) == []


def test_ends_by_hand_that_contradict_the_database_are_named(
    shop: Shop, broker: EmbeddedBroker, database: Database, tmp_path: Path
) -> None:
    shop.order(commits=True)
    left: list[str] = []
    for _ in range(3):  # Their session commits, but the program ends before their message does.
        message = Message("orders", b"left")
        half = broker.prepare(message, 0, "order-service", 0)
        broker.local_transaction_ended(half)
        left.append(half.message_id)
        _commit_row(shop.kind, half.message_id)
    assert database.reconcile(broker) == []
    broker.discard(left[0])
    broker.end_transaction(left[1], LocalTransactionState.ROLLBACK)
    broker.end_transaction(left[2], LocalTransactionState.COMMIT)
    found = {one.transaction_id: one.state for one in database.reconcile(broker)}
    assert found == {left[0]: TransactionState.DISCARDED, left[1]: TransactionState.ROLLED_BACK}
    broker.resume(left[0])
    assert ids(database.reconcile(broker)) == [left[1]]


def _commit_row(kind: Kind, transaction_id: str) -> None:
    with contextlib.closing(kind.connect()) as connection:
        connection.execute(
            f"INSERT INTO txstore_transactions SELECT '{transaction_id}', 'committed', 1 + max(created_ms) "
            "FROM txstore_transactions WHERE outcome = 'committed'"
        )
        connection.commit()


def test_rows_older_than_the_log_are_not_compared(
    shop: Shop, broker: EmbeddedBroker, database: Database, tmp_path: Path
) -> None:
    """Retention may have removed their messages, and a new store never had them."""
    plain = broker.producer("p")
    for _ in range(40):
        shop.order(commits=True)
        plain.send(Message("filler", bytes(60_000)))
    size = SMALL["mapped_file_size_commit_log"]
    assert broker.stat().max_physical_offset > 2 * size
    broker.store.remove_log_files(size, keep_unread=False)
    assert broker.stat().min_physical_offset == size
    assert database.reconcile(broker) == []
    oldest = broker.oldest_timestamp()
    with txstore.open(tmp_path / "new", transaction_check_interval=3600, **SMALL) as new:
        assert new.oldest_timestamp() is None
        assert database.reconcile(new) == []
        new.producer("p").send(Message("orders", b"first"))
        assert database.reconcile(new) == []
        later = shop.order(commits=True)
        assert ids(database.reconcile(new)) == [later]
    assert oldest is not None


def test_damaged_message_that_a_repair_drops_is_named(
    shop: Shop, broker: EmbeddedBroker, database: Database, tmp_path: Path, command_line: Run
) -> None:
    names = [shop.order(commits=True) for _ in range(12)]
    chosen = shop.chance.sample(names, 3)
    finals = [broker.transaction(name).finals[0] for name in chosen]
    broker.close()
    for offset in finals:
        with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(offset)
            file.write(b"\xde\xad\xbe\xef" * 5)
    code, out, err = command_line("store", "repair", tmp_path / "store")
    assert code in (0, 1), (out, err)
    with txstore.open(tmp_path / "store", transaction_check_interval=3600, **SMALL) as repaired:
        missing = database.reconcile(repaired)
        assert sorted(ids(missing)) == sorted(chosen)
        assert {one.state for one in missing} == {TransactionState.ROLLED_BACK}, "only the op message is left"


def test_commands_and_other_brokers_name_the_same(
    shop: Shop, broker: EmbeddedBroker, database: Database, tmp_path: Path, command_line: Run
) -> None:
    shop.order(commits=True)
    killed_copy(tmp_path / "store", tmp_path / "copy")
    lost = [shop.order(commits=True) for _ in range(3)]
    same = ["--database", shop.kind.address]
    assert command_line("tx", "reconcile", tmp_path / "store", *same) == (0, "no message is missing\n", "")
    code, out, err = command_line("tx", "reconcile", tmp_path / "copy", *same, "--json")
    assert (code, err) == (1, "")
    assert sorted(one["transaction_id"] for one in json.loads(out)) == sorted(lost)
    with (
        txstore.open(tmp_path / "copy", transaction_check_interval=3600, **SMALL) as restored,
        txstore.serve(restored, listen="127.0.0.1:0", name_server=None) as server,
    ):
        assert server.address is not None
        code, out, _ = command_line("tx", "reconcile", "--server", server.address, *same)
        assert code == 1
        assert all(name in out for name in lost)
        with txstore.connect(server.address) as remote:
            assert sorted(ids(database.reconcile(remote))) == sorted(lost)
            remote._administration._knows_calls = dict.fromkeys(remote._client.brokers(), False)
            with pytest.raises(BrokerRefusedError, match="RocketMQ broker cannot answer"):
                database.reconcile(remote)

        async def over_asyncio() -> list[str]:
            async with txstore.aio.connect(str(server.address)) as remote:
                return ids(await database.reconcile(remote))

        assert sorted(asyncio.run(over_asyncio())) == sorted(lost)


@pytest.mark.parametrize("kind", ["sqlalchemy sqlite async", "sqlalchemy asyncpg"], indirect=True)
def test_async_engines_and_stores(kind: Kind, tmp_path: Path) -> None:
    database = Database(kind.source)
    database.create_table()

    async def lost() -> None:
        async with txstore.aio.open(tmp_path / "store", transaction_check_interval=3600, **SMALL) as broker:
            producer = broker.transaction_producer("order-service", database=database)
            names = []
            for number in range(4):
                async with (
                    kind.session() as session,
                    producer.transaction(Message("orders", b"1"), session=session) as tx,
                ):
                    await kind.order(session, number, tx.transaction_id)
                names.append(tx.transaction_id)
                if number == 1:
                    killed_copy(tmp_path / "store", tmp_path / "copy")
            assert await database.reconcile(broker) == []
        async with txstore.aio.open(tmp_path / "copy", transaction_check_interval=3600, **SMALL) as restored:
            assert sorted(ids(await database.reconcile(restored))) == sorted(names[2:])

    run(lost())
