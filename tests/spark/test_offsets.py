"""Guards where a read of each queue begins and ends: by queue offset, at the earliest or the latest one, or by time, as
Spark's Kafka source has it; and that a stream keeps where its queues began.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from tests.copies import killed_copy
from txstore import Message, _native
from txstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstore.spark.stream import TxStoreStreamReader

pytestmark = pytest.mark.spark
FILE_BYTES = 1 << 14
OFFSET_MAX = (1 << 63) - 1
Rows = dict[int, list[tuple[int, int, int]]]
"""By queue of the topic `orders`: queue offset, store time in ms, physical offset."""


def send(broker: txstore.Broker, count: int) -> None:
    orders, payments = broker.producer("orders"), broker.producer("payments")
    for number in range(count):
        orders.send(Message("orders", b"x" * 100))
        if number % 3 == 0:
            payments.send(Message("payments", b"x" * 100))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "orders.store"
    with txstore.open(path, mapped_file_size_commit_log=FILE_BYTES) as broker:
        broker.create_topic("orders", 2)
        broker.create_topic("payments", 1)
        send(broker, 200)
    return path


def rows_of(store: Path) -> Rows:
    with txstore.open(store, read_only=True) as broker:
        found, at = [], broker.store.stat().min_physical_offset
        while more := broker.store.scan(at, 1_000):
            records, at = more
            if not records:
                break
            found += records
    rows: Rows = {0: [], 1: []}
    for record in found:
        if record.topic == "orders":
            rows[record.queue_id].append((record.queue_offset, record.store_timestamp_ms, record.physical_offset))
    return rows


def assert_found(store: Path) -> None:
    """Compares what the engine finds of a queue with its records."""
    _, visible = _native.log_range(store)
    for queue, rows in rows_of(store).items():
        first, end = rows[0][0], rows[-1][0] + 1
        assert _native.log_queue_range(store, "orders", queue) == (first, end)
        for queue_offset, stored_ms, physical_offset in rows[:: max(1, len(rows) // 20)]:
            assert _native.log_queue_position(store, "orders", queue, queue_offset) == physical_offset
            expected = next(offset for offset, ms, _ in rows if ms >= stored_ms)
            assert _native.log_queue_offset_since(store, "orders", queue, stored_ms) == expected
        assert _native.log_queue_position(store, "orders", queue, end) == visible
        assert _native.log_queue_offset_since(store, "orders", queue, rows[-1][1] + 1) is None
        assert _native.log_queue_offset_since(store, "orders", queue, 0) == first


def test_a_queue_is_found_in_every_state_of_its_files(store: Path, tmp_path: Path) -> None:
    assert_found(store)
    with txstore.open(store) as broker:
        send(broker, 30)  # Their entries are not in the files yet.
        assert_found(store)
        assert broker.store.remove_log_files(2 * FILE_BYTES, keep_unread=False).minimum >= FILE_BYTES
    assert rows_of(store)[0][0][0] > 0
    assert_found(store)
    brokers = killed_copy(store, tmp_path / "brokers.store")
    shutil.rmtree(brokers / "txstore")
    assert_found(brokers)
    shutil.rmtree(store / "consumequeue")
    assert_found(store)
    assert _native.log_queue_range(store, "orders", 7) is None
    assert _native.log_queue_ids(store, "orders") == [0, 1]
    assert _native.log_queue_ids(store, "unknown") == []


def read(spark: SparkSession, path: Path, **options: object) -> list[tuple[str, int, int]]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    frame = spark.read.format("txstore").options(columns="topic,queue_id,queue_offset", **texts).load(str(path))
    return sorted((row.topic, row.queue_id, row.queue_offset) for row in frame.collect())


def test_batches_begin_and_end_by_offset_and_by_time(spark: SparkSession, store: Path) -> None:
    rows = rows_of(store)
    every = read(spark, store)
    limits: dict[str, object] = {
        "startingOffsets": {"orders": {"0": 5, "1": -2}},
        "endingOffsets": {"orders": {"0": 9, "1": -1}},
    }
    assert read(spark, store, **limits) == [row for row in every if row[:2] != ("orders", 0) or 5 <= row[2] < 9]
    only_orders = {"assign": {"orders": [0, 1]}}
    assert read(spark, store, **limits, **only_orders) == [
        row for row in every if row[0] == "orders" and (row[1] == 1 or 5 <= row[2] < 9)
    ]
    start, end = rows[0][40], rows[1][60]
    times: dict[str, object] = {
        "startingOffsetsByTimestamp": {"orders": {"0": start[1], "1": start[1]}},
        "endingOffsetsByTimestamp": {"orders": {"0": end[1], "1": end[1]}},
    }
    assert read(spark, store, **times, **only_orders) == [
        ("orders", queue, offset) for queue in (0, 1) for offset, ms, _ in rows[queue] if start[1] <= ms < end[1]
    ]
    late = {"startingOffsetsByTimestamp": {"orders": {"0": 1 << 50}}}
    latest = read(spark, store, **late, startingOffsetsByTimestampStrategy="latest")
    assert latest == [row for row in every if row[:2] != ("orders", 0)]
    assert read(spark, store, endingOffsetsByTimestamp={"orders": {"0": 1 << 50}}) == every


def test_a_range_of_assigned_queues_is_not_planned_beyond_them(store: Path) -> None:
    from pyspark.sql.types import LongType, StructType

    from txstore.spark.datasource import TxStoreReader
    from txstore.spark.options import ReadOptions

    rows = rows_of(store)[0]
    options = {
        "path": str(store),
        "assign": '{"orders":[0]}',
        "startingOffsets": '{"orders":{"0":40}}',
        "endingOffsets": '{"orders":{"0":50}}',
    }
    schema = StructType().add("physical_offset", LongType(), nullable=False)
    ranges: list[Any] = list(TxStoreReader(ReadOptions.of(options), schema).partitions())
    assert [(part.start, part.end) for part in ranges] == [(rows[40][2], rows[50][2])]


BAD: list[tuple[dict[str, object], str]] = [
    ({"assign": {"orders": [0, 2]}}, "has no queue 2\nhint: its queues are 0 to 1"),
    ({"startingOffsets": {"orders": {"4": 0}}}, "has no queue 4"),
    ({"startingOffsets": {"orders": {"0": 1_000}}}, "has the offsets 0 to 100, and not 1000"),
    ({"endingOffsets": {"orders": {"0": 1_000}}}, "has the offsets 0 to 100, and not 1000"),
    ({"startingOffsets": {"orders": {"0": -1}}}, "a batch cannot begin at latest"),
    ({"startingOffsets": {"orders": {"0": -3}}}, "of -2 or more"),
    ({"endingOffsets": {"orders": {"0": -2}}}, "of -1 or more"),
    ({"endingOffsets": "earliest"}, "must be a JSON object"),
    ({"startingOffsets": {"order": {"0": 1}}}, "did you mean 'orders'"),
    ({"startingOffsets": {"orders": {"0": 9}}, "endingOffsets": {"orders": {"0": 5}}}, "before its start 9"),
    ({"startingOffsets": {"orders": {"0": 9}}, "assign": {"payments": [0]}}, "name it in assign, too"),
    ({"startingOffsetsByTimestamp": {"orders": {"0": 1 << 50}}}, "Strategy=latest begins such a queue at its end"),
    ({"startingOffsetsByTimestamp": "latest"}, "must be a JSON object"),
    ({"startingOffsetsByTimestamp": {"orders": {"0": -1}}}, "times in milliseconds"),
    ({"startingOffsetsByTimestamp": {"orders": {"0": 1}}, "startingTimestamp": "1"}, "keep one of the two"),
    ({"startingOffsetsByTimestampStrategy": "latest"}, "applies only with startingOffsetsByTimestamp"),
    ({"minOffsetsPerTrigger": "5"}, "only streams accept it"),
    ({"maxTriggerDelay": "5m"}, "applies only with minOffsetsPerTrigger"),
    ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "for example 15m"),
]


@pytest.mark.parametrize(("options", "says"), BAD, ids=[str(options) for options, _ in BAD])
def test_limits_that_the_store_does_not_have_are_errors(store: Path, options: dict[str, object], says: str) -> None:
    from pyspark.sql.types import LongType, StructType

    from txstore.spark.datasource import TxStoreReader
    from txstore.spark.options import ReadOptions

    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    schema = StructType().add("physical_offset", LongType(), nullable=False)
    with pytest.raises(InvalidOptionError) as raised:
        TxStoreReader(ReadOptions.of({"path": str(store), **texts}), schema).partitions()
    assert says in str(raised.value)


def test_what_retention_removed_is_an_error_or_a_warning(
    spark: SparkSession, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with txstore.open(store) as broker:
        broker.store.remove_log_files(2 * FILE_BYTES, keep_unread=False)
    every = read(spark, store, assign={"orders": [0]})
    first = every[0][2]
    assert first > 1
    starts = {"assign": {"orders": [0]}, "startingOffsets": {"orders": {"0": 1}}}
    with pytest.raises(Exception, match=f"has the offsets {first} to 100, and not 1"):
        read(spark, store, **starts)
    with caplog.at_level(logging.WARNING, "txstore.spark"):
        assert read(spark, store, **starts, failOnDataLoss="false") == every


def test_a_topic_that_was_deleted_and_created_again_continues_its_offsets(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "again.store"
    with txstore.open(path, mapped_file_size_consume_queue=20 * 10) as broker:
        for count in (25, 30):
            broker.create_topic("orders", 1)
            with broker.producer("orders") as producer:
                producer.send_batch([Message("orders", b"x")] * count)
            if count == 25:
                assert broker.delete_topic("orders") == 25
        (first,) = (queue.first for queue in broker.queues() if queue.topic == "orders")
    assert first == 25

    def found(**options: object) -> list[int]:
        return [queue_offset for _, _, queue_offset in read(spark, path, assign={"orders": [0]}, **options)]

    assert found() == found(startingOffsets={"orders": {"0": -2}}) == [*range(55)]
    assert found(startingOffsets={"orders": {"0": first}}) == [*range(25, 55)]
    former: dict[str, object] = {"startingOffsets": {"orders": {"0": 3}}}
    with pytest.raises(Exception, match="to 55, and not 3"):
        found(**former)
    # The deletion removed whole files of the queue, of ten entries each.
    assert found(**former, failOnDataLoss="false") == [*range(20, 55)]


def reader(store: Path, **options: object) -> TxStoreStreamReader:
    from pyspark.sql.types import LongType, StructType

    from txstore.spark.options import ReadOptions
    from txstore.spark.stream import TxStoreStreamReader

    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    schema = StructType().add("queue_id", "integer", nullable=False).add("queue_offset", LongType(), nullable=False)
    return TxStoreStreamReader(ReadOptions.of({"path": str(store), **texts}), schema)


def rows_between(stream: TxStoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    def rows() -> Iterator[tuple[int, int]]:
        # Spark sends offsets as JSON.
        for part in stream.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
            for batch in stream.read(part):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    return sorted(rows())


@pytest.fixture
def _limits(limits: None) -> None:
    """For tests of what Spark 4.0 and 4.1 do not have."""


@pytest.mark.usefixtures("_limits")
@pytest.mark.parametrize("assigned", [True, False])
def test_a_stream_keeps_where_its_queues_began(store: Path, assigned: bool) -> None:
    from txstore.spark.versions import ReadAllAvailable

    last_ms = rows_of(store)[1][-1][1]
    asked: list[dict[str, object]] = [
        {"startingOffsets": {"orders": {"0": -1, "1": 90}}},
        {
            "startingOffsetsByTimestamp": {"orders": {"0": last_ms + 3_600_000, "1": rows_of(store)[1][90][1]}},
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ]
    ends = {queue: rows[-1][0] + 1 for queue, rows in rows_of(store).items()}
    since = next(offset for offset, ms, _ in rows_of(store)[1] if ms >= rows_of(store)[1][90][1])
    starts = []
    for options in asked:
        if assigned:
            options["assign"] = {"orders": [0, 1]}
        else:
            options["subscribe"] = "orders"
        starts.append((options, reader(store, **options).initialOffset()))
    with txstore.open(store) as broker:
        send(broker, 40)
    new = {queue: rows[-1][0] + 1 for queue, rows in rows_of(store).items()}
    for (options, start), first in zip(starts, (90, since), strict=True):
        assert start["queues"] == {"orders": {"0": ends[0], "1": first}}
        expected = [(0, offset) for offset in range(ends[0], new[0])] + [(1, offset) for offset in range(first, new[1])]
        # A restarted query has another reader, and its options are the same.
        for stream in (reader(store, **options), reader(store, **options)):
            end = stream.latestOffset(start, ReadAllAvailable())
            assert rows_between(stream, start, end) == expected
            assert end["queues"] == start["queues"]


@pytest.mark.usefixtures("_limits")
def test_a_micro_batch_waits_for_its_least_rows(store: Path) -> None:
    from txstore.spark.versions import ReadAllAvailable, ReadMinRows

    stream = reader(store, subscribe="orders", minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    least = stream.getDefaultReadLimit()
    assert least == ReadMinRows(50)
    start = stream.initialOffset()
    end = stream.latestOffset(start, least)
    assert len(rows_between(stream, start, end)) == 200
    with txstore.open(store) as broker:
        assert stream.latestOffset(end, least) == end
        send(broker, 49)
        assert stream.latestOffset(end, least) == end
        assert stream.latestOffset(end, ReadAllAvailable()) != end, "Trigger.Once reads all"
        send(broker, 1)
        more = stream.latestOffset(end, least)
        assert len(rows_between(stream, end, more)) == 50
        # Another query begins at once, and again as soon as the delay is over and there is a row.
        hasty = reader(store, subscribe="orders", minOffsetsPerTrigger="50", maxTriggerDelay="0")
        assert hasty.latestOffset(more, least) == more
        send(broker, 1)
        last = hasty.latestOffset(more, least)
        assert len(rows_between(hasty, more, last)) == 1
        assert hasty.latestOffset(last, least) == last
        # Trigger.AvailableNow reads up to the end whatever is missing.
        now = reader(store, subscribe="orders", minOffsetsPerTrigger="50", maxTriggerDelay="1h")
        now.prepareForTriggerAvailableNow()
        assert now.latestOffset(more, least) == last


@pytest.mark.usefixtures("_limits")
def test_a_stream_from_the_latest_offsets_runs_in_spark(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    def run() -> int:
        frame = (
            spark.readStream.format("txstore")
            .option("columns", "queue_id,queue_offset")
            .option("assign", '{"orders":[0,1]}')
            .option("startingOffsets", '{"orders":{"0":-1,"1":98}}')
            .option("minOffsetsPerTrigger", 5)
            .option("maxTriggerDelay", "30s")
            .load(str(store))
        )
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        return spark.read.parquet(str(tmp_path / "out")).count()

    assert run() == 2
    with txstore.open(store) as broker:
        send(broker, 20)
    assert run() == 22
