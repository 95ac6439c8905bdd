"""Guards that a row of the outbox is deleted only if it was named, and only when its message is durable."""

from __future__ import annotations

import random
import sqlite3

import pytest

from txstore._native import OutboxRow
from txstore.database.outbox.appended import Appended
from txstore.database.outbox.appending import Row
from txstore.database.outbox.expected import Expected
from txstore.database.statements import DDL_SQLITE, finish
from txstore.message import Message


@pytest.mark.parametrize("keep_ms", [None, 60_000], ids=["deleted", "kept"])
def test_only_the_named_rows_are_deleted_whatever_gaps_their_ids_have(keep_ms: int | None) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    connection = sqlite3.connect(":memory:")
    for sql in DDL_SQLITE:
        connection.execute(sql)
    for _ in range(200):
        there = set(range(1, chance.randint(2, 60)))
        connection.executemany("INSERT INTO txstore_outbox (id, destination, message) VALUES (?, 1, x'01')", zip(there))
        first, last = sorted(chance.choices(range(1, 65), k=2))
        named = {row_id for row_id in range(first, last + 1) if chance.random() < chance.choice((0.5, 1.0))}
        if named:
            for sql in finish([*named, min(named)], "sqlite", keep_ms):
                connection.execute(sql)
        left = {row_id for (row_id,) in connection.execute("SELECT id FROM txstore_outbox")}
        assert left == there - named
        if keep_ms is not None:
            kept = {row_id for (row_id,) in connection.execute("SELECT id FROM txstore_sent")}
            assert kept == there & named
        connection.execute("DELETE FROM txstore_outbox")
        connection.execute("DELETE FROM txstore_sent")


def test_rows_are_finished_in_the_order_of_the_log_up_to_its_durable_end() -> None:
    appended = Appended()
    assert appended.first_end > 1 << 40
    assert appended.take(100, 1 << 40) == []
    assert appended.first_end > 1 << 40
    appended.add([1, 2, 3], 300)
    appended.add([], 350)
    appended.add([4, 5], 500)
    assert (len(appended), appended.first_end, appended.take(100, 299)) == (5, 300, [])
    assert appended.take(2, 300) == [1, 2]
    assert appended.first_end == 300
    assert appended.take(100, 499) == [3]
    assert appended.first_end == 500
    appended.add_finished([1])
    assert (len(appended), appended.first_end) == (3, 0)
    assert appended.take(2, 499) == [1]
    assert appended.take(2, 500) == [4, 5]
    assert len(appended) == 0
    assert appended.first_end > 1 << 40
    assert appended.take(1, 1 << 40) == []
    appended.add([6, 7], 600)
    appended.add([8, 9], 700)
    assert appended.take(3, 700) == [6, 7, 8]
    assert (len(appended), appended.first_end, appended.take(3, 700)) == (1, 700, [9])


def row_of(data_bytes: int, message_group: str | None = None) -> OutboxRow:
    """Returns a row whose binary form has that length."""
    body = data_bytes - 100
    row = OutboxRow.of(Message("orders", b"x" * body, message_group=message_group), "g")
    row = OutboxRow.of(Message("orders", b"x" * (body + data_bytes - len(row.data)), message_group=message_group), "g")
    assert len(row.data) == data_bytes
    return row


def test_rows_beyond_the_memory_are_only_ids() -> None:
    expected = Expected()
    row = row_of(1 << 20)
    for again in range(2):
        for number in range(40):
            expected.add(number, row, 2, float(number))
        assert (len(expected), expected.first(), expected.before(2.0)) == (40, 0, [0, 1])
        found = [expected.pop(number) for number in range(40)]
        assert found == [
            Row(number, row, None, 0, 2) if number < 16 else Row(number, None, None, 0) for number in range(40)
        ], f"what was removed makes room, {again}"
        assert len(expected) == 0
    assert expected.pop(7) == Row(7, None, None, 0)
    expected.add(50, row, None, 0.0, group_seq=3)
    assert (expected.pop(50).group_seq, expected.first()) == (3, None)


def test_a_row_comes_back_with_its_message_group_its_sequence_and_its_queue() -> None:
    expected = Expected()
    alone, grouped = row_of(500), row_of(500, "customer-7")
    expected.add(1, grouped, None, 0.0, group_seq=3)
    expected.add(2, alone, 0, 0.0)
    expected.add(3, grouped, None, 0.0)
    expected.add(4, None, 1, 0.0, group_seq=9)
    assert [expected.pop(number) for number in (2, 3, 4, 1)] == [
        Row(2, alone, None, 0, 0),
        Row(3, grouped, "customer-7", 0),
        Row(4, None, None, 0),
        Row(1, grouped, "customer-7", 3),
    ]
