"""Guards the promise that a message in the log has its row: a database that may lose a commit with the power is named.

On SQLite and PostgreSQL; `test_outbox_aio` has the async sessions.
"""

from __future__ import annotations

import logging

import pytest

from tests.database.conftest import Kind
from tests.database.outbox_worker import connected
from txstore import EmbeddedBroker, Message
from txstore.database import Database

pytestmark = pytest.mark.parametrize("kind", ["sqlite3", "psycopg"], indirect=True)
_LOSSY = "may lose commits with the power"


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_database_that_may_lose_commits_is_named_once(
    kind: Kind, database: Database, broker: EmbeddedBroker, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    durable, lossy = connected(kind.address), connected(kind.address)
    if kind.name == "sqlite3":
        durable.execute(f"PRAGMA journal_mode = {journal}")
        durable.execute("PRAGMA synchronous = FULL" if journal == "WAL" else "PRAGMA synchronous = NORMAL")
        lossy.execute("PRAGMA synchronous = NORMAL" if journal == "WAL" else "PRAGMA synchronous = OFF")
    else:
        lossy.execute("SET synchronous_commit = off")
        lossy.commit()
    broker.create_topic("orders", 1)
    with caplog.at_level(logging.WARNING, "txstore.database.outbox"):
        producer = broker.producer("order-service", database=database)
        producer.send(Message("orders", b"1"), session=durable)
        durable.commit()
        assert _LOSSY not in caplog.text
        producer = broker.producer("order-service", database=Database(kind.address))
        for _ in range(2):
            producer.send(Message("orders", b"1"), session=lossy)
            lossy.commit()
        assert caplog.text.count(_LOSSY) == 1
    durable.close()
    lossy.close()
