"""Guards what operators see of messages that wait in a database: `Database.outbox` and `txstore outbox`."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txstore
from tests.database.conftest import SMALL, Kind, new_kind
from tests.unit.conftest import Run, run
from tests.waiting import eventually
from txstore import Message
from txstore._native import OutboxRow
from txstore.database import Database
from txstore.database.outbox.ids import ids_of
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


# Rows of this process, and of two others.
OWN, OTHER, THIRD = ids_of(5 << 36), ids_of(3 << 36), ids_of(7 << 36)


def row_of(age_seconds: int) -> bytes:
    """A row whose `send` was called so long ago."""
    new = OutboxRow.of(Message("orders", b"x"), "g")
    now_ms = round(new.born_timestamp.timestamp() * 1000)
    data = new.data.replace(struct.pack(">q", now_ms), struct.pack(">q", now_ms - age_seconds * 1000))
    assert OutboxRow(data).born_timestamp == new.born_timestamp - timedelta(seconds=age_seconds)
    return data


@pytest.fixture
def filled(tmp_path: Path) -> Database:
    """Rows for the log 1, one of which cannot be decoded, and single ones for others."""
    path = tmp_path / "shop.db"
    database = Database(path)
    database.create_table()
    own = [(OWN[at], 1, row_of(500 - 100 * at), None) for at in range(5)]
    rows: list[tuple[int, int, bytes, str | None]] = [
        *own,
        (OTHER[0], 1, row_of(50), None),
        (OTHER[3], 1, row_of(600), None),
        (OTHER[4], 1, row_of(900), "parked"),
        (THIRD[0], 1, b"no row", None),
        (THIRD[1], 2, row_of(700), None),
        (THIRD[2], 3, row_of(-900), None),
        (OWN[-2], 5, row_of(800), None),
    ]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO txstore_outbox (id, destination, message, parked) VALUES (?, ?, ?, ?)", rows
        )
        connection.commit()
    return database


@pytest.mark.parametrize("step", [1, 2, 500])
@pytest.mark.parametrize(
    ("destination", "in_log", "rows", "oldest"),
    [
        (1, [], 8, 500),
        (1, [0, 1], 6, 300),
        (1, [1], 7, 500),
        (1, [0, 1, 2, 3, 4], 3, 50),
        (1, [9], 8, 500),
        (2, [0, 1], 0, 700),
        (3, [], 1, 0),
        (4, [], 0, 0),
        (5, [0, 1, 2, 3, 4, -2], 0, 0),
    ],
)
def test_status_counts_what_waits_for_a_log_and_tells_the_oldest(
    filled: Database, destination: int, in_log: list[int], rows: int, oldest: int, step: int, monkeypatch: Any
) -> None:
    """Of each process, the first row is looked at. Its own rows whose messages are in the log do not wait."""
    monkeypatch.setattr("txstore.database.outbox.waiting._ROWS", step)
    status = filled.outbox_status(destination, OWN, {OWN[at] for at in in_log})
    assert status.rows == rows
    assert oldest <= status.oldest_seconds < oldest + 49 or (oldest, status.oldest_seconds) == (0, 0.0)


def test_row_is_found_after_others_and_the_answer_says_what_helps(filled: Database) -> None:
    waits, *_, parked = [row for row in filled.outbox() if row.number in OTHER]
    with pytest.raises(MessageNotFoundError) as refused:
        filled.retry_parked(waits.message_id)
    assert str(refused.value) == (
        f"message {waits.message_id} is not parked: it waits to be forwarded\nhint: open the store, which forwards it"
    )
    filled.drop_parked(parked.message_id)
    told = f"the outbox has no message {parked.message_id}\nhint: `txstore outbox list` shows what waits"
    with pytest.raises(MessageNotFoundError, match=f"^{re.escape(told)}$"):
        filled.drop_parked(parked.message_id)
