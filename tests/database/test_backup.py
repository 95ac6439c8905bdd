"""Guards what docs/operate/backup.md says about a backup of a store together with one of its database: which of the two
is taken first decides what can be found again after both were restored.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.backups import restored
from tests.database.conftest import SMALL
from txstore import EmbeddedBroker, Message
from txstore.backup import take_backup
from txstore.database import Database

NO_CHECKS: dict[str, Any] = SMALL | {"transaction_check_interval": 3600}


class Shop:
    """A service: each order is a row and a message of one transaction, by a block or by a row of the outbox."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "shop.db"
        self.database = Database(str(self.file), keep_sent=timedelta(hours=1))
        self.database.create_table()
        with self._session() as session:
            session.execute("CREATE TABLE orders (id TEXT)")
        self.open()

    def open(self) -> None:
        """Opens the store."""
        self.broker = txstore.open(self.folder / "store", **NO_CHECKS)
        self.outbox = self.broker.producer("outbox", database=self.database)
        self.blocks = self.broker.transaction_producer("blocks", database=self.database)

    @contextlib.contextmanager
    def _session(self) -> Any:
        with contextlib.closing(sqlite3.connect(self.file)) as session:
            yield session
            session.commit()

    def order(self, name: str) -> None:
        """Two orders, one in each way; both messages are in the log when it returns."""
        with self._session() as session:
            session.execute("INSERT INTO orders VALUES (?)", (f"outbox {name}",))
            self.outbox.send(Message("orders", f"outbox {name}".encode()), session=session)
        session = sqlite3.connect(self.file)
        message = Message("orders", f"block {name}".encode())
        with contextlib.closing(session), self.blocks.transaction(message, session=session):
            session.execute("INSERT INTO orders VALUES (?)", (f"block {name}",))
        # On SQLite, a row that was sent is moved to those that are kept when the broker closes.
        self.broker.close()
        self.open()

    def dump(self) -> Path:
        """Copies the database as `sqlite3 .backup` does."""
        copy = self.folder / "dump.db"
        with contextlib.closing(sqlite3.connect(self.file)) as session, contextlib.closing(sqlite3.connect(copy)) as to:
            session.backup(to)
        return copy


def rows(file: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(file)) as session:
        return {name for (name,) in session.execute("SELECT id FROM orders")}


def messages(broker: EmbeddedBroker) -> list[str]:
    found = [broker.read("orders", queue_id, first, 1000)[0] for _, queue_id, first, _ in broker.queues("orders")]
    return sorted(message.body.decode() for batch in found for message in batch)


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    made = Shop(tmp_path)
    yield made
    made.broker.close()


def test_store_first_then_database_and_all_that_is_missing_is_found(shop: Shop, tmp_path: Path) -> None:
    shop.order("before")
    backup = take_backup(shop.broker.path, tmp_path / "backups")
    shop.order("between")
    dump = shop.dump()
    shop.order("after")
    shop.broker.close()
    with txstore.open(restored(backup.path, tmp_path / "restored"), **NO_CHECKS) as broker:
        database = Database(str(dump), keep_sent=timedelta(hours=1))
        assert set(messages(broker)) < rows(dump), "each message has its rows"
        assert database.resend(broker).appended == 1
        assert database.resend(broker).appended == 0
        assert messages(broker) == ["block before", "outbox before", "outbox between"]
        (missing,) = database.reconcile(broker)
        assert missing.state is None
        assert rows(dump) - set(messages(broker)) == {"block between"}


def test_database_first_then_store_leaves_messages_without_rows(shop: Shop, tmp_path: Path) -> None:
    shop.order("before")
    dump = shop.dump()
    shop.order("between")
    backup = take_backup(shop.broker.path, tmp_path / "backups")
    shop.broker.close()
    with txstore.open(restored(backup.path, tmp_path / "restored"), **NO_CHECKS) as broker:
        database = Database(str(dump), keep_sent=timedelta(hours=1))
        assert (database.resend(broker).appended, database.reconcile(broker)) == (0, [])
        with broker.producer("outbox", database=database):
            pass
        assert messages(broker) == ["block before", "block between", "outbox before", "outbox between"]
        assert set(messages(broker)) - rows(dump) == {"block between", "outbox between"}
