"""Guards the encoding of rows: a write sends what a producer sends for the same messages, and errors show the row."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from txstore import Message
from txstore._native import SinkQueues, SinkRows, batch_body, java_hash_code
from txstore.errors import InvalidMessageError, InvalidOptionError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")
pytest.importorskip("pyspark", reason="pyspark is not installed: make installs requirements-dev.lock")

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int32()),
        ("message_group", pa.string()),
    ]
)
QUEUES = {"orders": SinkQueues([(0, 0), (1, 1), (2, 2)], 1), "paid": SinkQueues([(65_536, 0), (65_539, 3)], 0)}
IDS = {"orders": [0, 1, 2], "paid": [0, 3]}
NUMBERS = {"orders": [0, 1, 2], "paid": [65_536, 65_539]}
TURNS = {"orders": 1, "paid": 0}


class Entry(NamedTuple):
    """A message in the body of a request."""

    body: bytes
    properties: list[str]


def entries(body: bytes) -> list[Entry]:
    """Parses the body of a request; the unique ids differ, so they are left out."""
    found = []
    while body:
        size, _, _, flag, length = struct.unpack_from(">iiiii", body)
        assert flag == 0
        entry, body = body[20:size], body[size:]
        (rest,) = struct.unpack_from(">h", entry, length)
        text = entry[length + 2 :].decode()
        assert len(text.encode()) == rest
        pairs = [pair for pair in text.split("\x02") if pair]
        assert sum(pair.startswith("UNIQ_KEY\x01") for pair in pairs) == 1
        found.append(Entry(entry[:length], [pair for pair in pairs if not pair.startswith("UNIQ_KEY\x01")]))
    return found


def rows_of(batches: Sequence[Any], topic: str | None = None) -> SinkRows:
    from txstore.spark.sink.rows import rows_of

    (rows,) = rows_of(batches, topic, 1 << 30)
    return rows


def any_row(random: random.Random) -> dict[str, Any]:
    def word() -> str:
        return "".join(random.choice("abcäü-7") for _ in range(random.randint(1, 6)))

    topic = random.choice(["orders", "paid"])
    return {
        "topic": topic,
        "body": random.randbytes(random.randint(1, 40)),
        "keys": random.choice([None, [], [word()], [word(), word()]]),
        "tags": random.choice([None, "", word()]),
        "properties": random.choice([None, [], [(word(), word())], [("a", word()), ("b", word())]]),
        "queue_id": random.choice([None, None, random.choice(NUMBERS[topic])]),
        "message_group": random.choice([None, "", word()]),
    }


def message_of(row: dict[str, Any]) -> Message:
    return Message(
        row["topic"],
        row["body"],
        keys=row["keys"] or None,
        tags=row["tags"] or None,
        properties=dict(row["properties"] or ()),
        message_group=row["message_group"] or None,
    )


def queue_of(row: dict[str, Any]) -> int:
    """The index of a row's queue, by the rule of the documentation."""
    topic, group = row["topic"], row["message_group"]
    if row["queue_id"] is not None:
        return NUMBERS[topic].index(row["queue_id"])
    return java_hash_code(group) % len(IDS[topic]) if group else TURNS[topic]


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_encoded_as_the_messages_of_a_producer(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    rows = [any_row(chance) for _ in range(60)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    # Arrays that begin within their buffers, and several of them.
    start, cut = chance.randint(0, 9), chance.randint(10, 50)
    sent = rows_of([batch.slice(start, cut - start), batch.slice(cut)])
    assert sent.count == 60 - start
    taken = range(chance.randint(0, 5), sent.count - chance.randint(0, 5))
    expected = [rows[start + index] for index in taken]
    messages, ids = [message_of(row) for row in expected], ["id"] * len(expected)

    assert sent.topics(taken.start, taken.stop) == list(dict.fromkeys(row["topic"] for row in expected))
    halves = sent.halves(taken.start, taken.stop, QUEUES, [])
    queue_ids = [IDS[row["topic"]][queue_of(row)] for row in expected]
    assert entries(halves.body) == entries(batch_body(messages, ids, queue_ids))

    batches = sent.batches(taken.start, taken.stop, QUEUES)
    by_queue: dict[tuple[str, int], list[Message]] = {}
    for row, message in zip(expected, messages, strict=True):
        by_queue.setdefault((row["topic"], NUMBERS[row["topic"]][queue_of(row)]), []).append(message)
    assert {(one.topic, one.queue): one.count for one in batches} == {key: len(own) for key, own in by_queue.items()}
    for one in batches:
        own = by_queue[one.topic, one.queue]
        assert entries(one.body) == entries(batch_body(own, ["id"] * len(own)))


def test_first_message_bears_the_labels_and_the_id() -> None:
    sent = rows_of(
        [pa.RecordBatch.from_pylist([{"body": b"1"}, {"body": b"2"}], pa.schema([("body", pa.binary())]))], "orders"
    )
    halves = sent.halves(0, 2, QUEUES, [("SPARK_BATCH", "query:7")])
    first, second = entries(halves.body)
    assert "SPARK_BATCH\x01query:7" in first.properties
    assert not any("SPARK_BATCH" in pair for pair in second.properties)
    assert f"UNIQ_KEY\x01{halves.message_id}\x02".encode() in halves.body


@pytest.mark.parametrize(
    ("kinds", "row"),
    [
        ({"body": pa.string(), "keys": pa.string()}, {"body": "ä", "keys": " a b "}),
        ({"body": pa.large_binary(), "keys": pa.large_string()}, {"body": "ä".encode(), "keys": "a b"}),
    ],
)
def test_other_types_of_the_same_columns(kinds: dict[str, Any], row: dict[str, Any]) -> None:
    sent = rows_of([pa.RecordBatch.from_pylist([row], pa.schema(list(kinds.items())))], "orders")
    (entry,) = entries(sent.halves(0, 1, QUEUES, []).body)
    assert entry.body == "ä".encode()
    assert entry.properties[0] == "KEYS\x01a b"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"topic": None}, r"topic null.*: topic is null\nhint: filter such rows, or set the option topic"),
        ({"body": None}, r'topic "orders", keys "o-1", tags "t", queue_id 2\): body is null'),
        ({"body": b""}, "the body is empty"),
        ({"topic": "a b"}, "'a b'|\"a b\""),
        ({"keys": ["a b"]}, 'key "a b" is empty or contains a space'),
        ({"keys": [None]}, "a key is null"),
        ({"properties": [("a", None)]}, 'property "a" is null'),
        ({"properties": [("KEYS", "1")]}, 'property "KEYS" is RocketMQ\'s own'),
        ({"tags": "a||b"}, "is not a tag"),
    ],
)
def test_row_that_cannot_be_sent_is_shown(changed: dict[str, Any], text: str) -> None:
    row = {"topic": "orders", "body": b"1", "keys": ["o-1"], "tags": "t", "queue_id": 2} | changed
    sent = rows_of([pa.RecordBatch.from_pylist([row], SCHEMA)])
    with pytest.raises(InvalidMessageError, match=rf"(?s)a row cannot be sent .*(?:{text})"):
        sent.topics(0, 1) and sent.halves(0, 1, QUEUES, [])


def test_text_that_is_not_utf_8_is_an_error() -> None:
    # Spark's CAST(body AS STRING) does not verify it.
    tags = pa.array([b"\xff"]).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([b"1"]), tags], names=["body", "tags"])
    with pytest.raises(InvalidMessageError, match="tags is not valid UTF-8"):
        rows_of([batch], "orders").halves(0, 1, QUEUES, [])


def test_queue_that_does_not_accept_messages_is_an_error() -> None:
    row = {"topic": "orders", "body": b"1", "queue_id": 7}
    sent = rows_of([pa.RecordBatch.from_pylist([row], SCHEMA)])
    with pytest.raises(InvalidOptionError, match=r'topic "orders" has no queue 7 .*\nhint: its queues are 0, 1, 2'):
        sent.halves(0, 1, QUEUES, [])


def test_groups_end_at_their_limits() -> None:
    rows = [{"topic": "orders", "body": b"x" * 1_000} for _ in range(10)]
    sent = rows_of([pa.RecordBatch.from_pylist(rows, SCHEMA)])
    assert sent.group_end(0, 4, 1 << 20) == 4
    assert sent.group_end(8, 4, 1 << 20) == 10
    assert sent.group_end(0, 100, 5_000) == 3
    assert sent.group_end(0, 100, 10) == 1, "a row that is larger than the limit is alone"


def test_small_batches_are_gathered() -> None:
    from txstore.spark.sink.rows import rows_of

    batch = pa.RecordBatch.from_pylist([{"topic": "orders", "body": b"1"}], SCHEMA)
    assert [rows.count for rows in rows_of([batch] * 7, None, 3)] == [3, 3, 1]
    assert list(rows_of([], None, 3)) == []
    assert list(rows_of([batch.slice(0, 0)], None, 3)) == []
