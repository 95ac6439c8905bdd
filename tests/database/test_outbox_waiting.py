"""Guards what operators see of messages that wait in a database: `Database.outbox` and `txstore outbox`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txstore
from tests.database.conftest import SMALL, Kind, new_kind
from tests.unit.conftest import Run, run
from tests.waiting import eventually
from txstore import Message
from txstore.database import Database
from txstore.errors import MessageNotFoundError

__all__ = ["run"]


@pytest.fixture(params=["sqlite3", "psycopg"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with new_kind(request.param, tmp_path, request) as found:
        yield found


@pytest.fixture
def parked(database: Database, kind: Kind, tmp_path: Path) -> tuple[Path, str]:
    """A store, and the id of the one row that waits."""
    path = tmp_path / "orders.store"
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("bills", 1)
        producer = broker.producer("order-service", database=database)
        connect = sqlite3.connect if kind.name == "sqlite3" else psycopg.connect
        connection: Any = connect(kind.address)
        receipt = producer.send(Message("bills", b"17", message_group="c-1"), session=connection)
        connection.execute("UPDATE txstore_outbox SET parked = 'bills had no queue'")
        connection.commit()
        connection.close()
    return path, receipt.message_id


def test_parked_row_is_shown_retried_and_dropped(
    parked: tuple[Path, str], database: Database, kind: Kind, run: Run
) -> None:
    _, message_id = parked
    [row] = database.outbox()
    assert (row.message_id, row.topic, row.producer_group, row.message_group) == (
        message_id,
        "bills",
        "order-service",
        "c-1",
    )
    assert "bills" in str(row.parked)
    code, out, err = run("outbox", "list", kind.address)
    assert (code, err) == (0, "")
    assert message_id in out
    assert "bills" in out
    code, out, _ = run("outbox", "show", kind.address, message_id, "--json")
    assert (code, json.loads(out)["message_id"]) == (0, message_id)
    code, out, _ = run("outbox", "retry", kind.address, message_id)
    assert (code, out) == (0, f"message {message_id} will be sent\n")
    assert [row.parked for row in database.outbox()] == [None]
    code, _, err = run("outbox", "drop", kind.address, message_id)
    assert code != 0
    assert "is not parked" in err
    assert len(database.outbox()) == 1


def test_retried_row_is_sent_when_the_store_is_opened(
    parked: tuple[Path, str], database: Database, kind: Kind, run: Run
) -> None:
    path, message_id = parked
    database.retry_parked(message_id)
    with txstore.open(path, **SMALL) as broker:
        broker.producer("order-service", database=database)
        eventually(lambda: [message.body for message in broker.read("bills", 0, 0, 10)[0]] == [b"17"])
        eventually(lambda: database.outbox() == [])


def test_dropped_row_is_gone(parked: tuple[Path, str], database: Database, kind: Kind, run: Run) -> None:
    _, message_id = parked
    code, out, _ = run("outbox", "drop", kind.address, message_id)
    assert (code, out) == (0, f"message {message_id} is dropped\n")
    assert database.outbox() == []
    code, out, _ = run("outbox", "list", kind.address)
    assert (code, out) == (0, "no messages wait\n")
    with pytest.raises(MessageNotFoundError, match="has no message"):
        database.drop_parked(message_id)
    code, _, err = run("outbox", "show", kind.address, message_id)
    assert code != 0
    assert "has no message" in err


def test_database_without_the_tables_is_named(tmp_path: Path, run: Run) -> None:
    sqlite3.connect(tmp_path / "other.db").close()
    code, _, err = run("outbox", "list", tmp_path / "other.db")
    assert code != 0
    assert "create_table" in err
    code, _, err = run("outbox", "list", tmp_path / "missing.db")
    assert code != 0
    assert "missing.db" in err
