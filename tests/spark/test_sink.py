"""Guards writes: a batch is visible once, whatever was repeated or killed, and what its other attempts left is undone.

Streams are in tests/spark/test_sink_stream.py, kills of whole queries in test_sink_killed.py, RocketMQ's brokers in
test_network_brokers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from tests.spark.conftest import per_trigger
from tests.waiting import eventually
from txstore import Message
from txstore.errors import BrokerUnreachableError, InvalidMessageError, InvalidOptionError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")
pytest.importorskip("pyspark", reason="pyspark is not installed: make installs requirements-dev.lock")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txstore.spark.sink.options import WriteOptions
    from txstore.spark.sink.writer import Written

pytestmark = pytest.mark.spark

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "transaction_check_interval": 1,
    "transaction_timeout": 1,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[txstore.Server]:
    path = tmp_path / "paid.store"
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", **SETTINGS) as server:
        yield server


def options(server: txstore.Server, **more: str) -> WriteOptions:
    from txstore.spark.sink.options import WriteOptions

    assert server.name_server is not None
    return WriteOptions.of({"brokers": server.name_server} | more)


def batch_of(numbers: range) -> Any:
    rows = [
        {
            "topic": "paid",
            "body": b"%d" % number,
            "keys": [f"o-{number}"],
            "tags": "t",
            "properties": [("n", str(number))],
        }
        for number in numbers
    ]
    types = pa.schema(
        [
            ("topic", pa.string()),
            ("body", pa.binary()),
            ("keys", pa.list_(pa.string())),
            ("tags", pa.string()),
            ("properties", pa.map_(pa.string(), pa.string())),
        ]
    )
    return pa.RecordBatch.from_pylist(rows, schema=types)


class Query:
    """A query's writes, as Spark calls them: tasks store, the driver publishes."""

    def __init__(self, server: txstore.Server) -> None:
        self._options = options(server)

    def attempt(self, batch: int, numbers: range) -> Written:
        from txstore.spark.sink.writer import written

        return written(self._options, "query", batch, iter([batch_of(numbers)]))

    def publish(self, batch: int, *tasks: Written) -> None:
        from txstore.spark.sink.writer import publish

        publish(self._options, "query", batch, tasks)


def visible(server: txstore.Server) -> list[int]:
    """The numbers that consumers of the topic can see."""
    broker = server.broker
    if "paid" not in broker.topics():
        return []
    found: list[int] = []
    for extent in broker.queues("paid"):
        at = extent.first
        while at < extent.end:
            messages, at = broker.read("paid", extent.queue_id, at, 1_000)
            found += [int(message.body) for message in messages]
    return sorted(found)


def pending(server: txstore.Server) -> int:
    return len(server.broker.transactions("pending"))


def test_batch_is_visible_once_and_its_other_attempts_are_rolled_back(server: txstore.Server) -> None:
    query = Query(server)
    speculative = query.attempt(0, range(5))
    first, second = query.attempt(0, range(2_500)), query.attempt(0, range(2_500, 2_600))
    assert len(speculative.transactions) == 1
    assert len(first.transactions) == 3
    assert visible(server) == []
    query.publish(0, first, second)
    assert visible(server) == list(range(2_600))
    eventually(lambda: pending(server) == 0)
    # Written again, as after a kill before Spark's own commit log.
    query.publish(0, query.attempt(0, range(2_600)))
    query.publish(0, first, second)
    assert visible(server) == list(range(2_600))
    assert pending(server) == 0


def test_record_decides_after_a_kill_before_the_commits(server: txstore.Server) -> None:
    from txstore.spark.sink.record import BatchRecord
    from txstore.spark.sink.target import Target

    query = Query(server)
    written = query.attempt(0, range(10))
    with Target(options(server)) as target:
        record = BatchRecord("query", 0, written.transactions).to_json()
        assert target.record("query", 0, record) == record
    # Nobody repeats the batch: the store itself commits what the record names.
    eventually(lambda: visible(server) == list(range(10)))
    # Somebody repeats it, and finds other rows: those of the record count.
    query.publish(0, query.attempt(0, range(100, 120)))
    assert visible(server) == list(range(10))


def test_batch_without_a_record_never_happened_once_a_later_one_has(server: txstore.Server) -> None:
    query = Query(server)
    query.publish(0, query.attempt(0, range(3)))
    query.attempt(1, range(3, 6))
    query.attempt(2, range(6, 9))
    server.broker._batch_records.settle()
    assert pending(server) == 2, "the query may still publish both"
    query.publish(2, query.attempt(2, range(6, 9)))
    eventually(lambda: pending(server) == 0)
    assert visible(server) == [0, 1, 2, 6, 7, 8]


def test_task_that_fails_leaves_nothing(server: txstore.Server) -> None:
    from txstore.spark.sink.writer import written

    bad = batch_of(range(1)).set_column(1, "body", pa.array([None], pa.binary()))
    with pytest.raises(InvalidMessageError, match=r"a row cannot be sent .* body is null"):
        written(options(server), "query", 0, iter([batch_of(range(2_000)), bad]))
    assert pending(server) == 0
    assert visible(server) == []


def test_columns_become_the_message(server: txstore.Server) -> None:
    query = Query(server)
    query.publish(0, query.attempt(0, range(2)))
    messages = [
        one for extent in server.broker.queues("paid") for one in server.broker.read("paid", extent.queue_id, 0)[0]
    ]
    second = next(message for message in messages if message.body == b"1")
    assert (second.keys, second.tags, second.properties["n"]) == (("o-1",), "t", "1")


def test_spark_writes_to_a_path_and_to_brokers(spark: SparkSession, server: txstore.Server, tmp_path: Path) -> None:
    numbers = spark.range(0, 300, numPartitions=2).selectExpr("'paid' AS topic", "CAST(id AS STRING) AS body")
    store = tmp_path / "own.store"
    numbers.write.format("txstore").mode("append").save(str(store))
    with txstore.open(store, read_only=True) as broker:
        assert sum(extent.end - extent.first for extent in broker.queues("paid")) == 300
    assert server.name_server is not None
    for _ in range(2):
        writer = numbers.write.format("txstore").mode("append").option("brokers", server.name_server)
        writer.option("appId", "copy").option("batchId", 0).save()
        assert visible(server) == list(range(300))


def test_stream_is_written_by_its_micro_batches(spark: SparkSession, server: txstore.Server, tmp_path: Path) -> None:
    # The way for Spark 4.0, which writes no stream to a source of Python.
    source = tmp_path / "orders.store"
    with txstore.open(source) as broker:
        broker.producer("producers").send_batch([Message("orders", b"%d" % number) for number in range(300)])
    names = server.name_server
    assert names is not None

    def write(rows: DataFrame, number: int) -> None:
        for _ in range(2):
            writer = rows.write.format("txstore").mode("append").option("brokers", names)
            writer.options(appId="copy", batchId=number).save()

    read = spark.readStream.format("txstore").options(columns="body", **per_trigger(maxOffsetsPerTrigger="200"))
    rows = read.load(str(source)).selectExpr("'paid' AS topic", "body")
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert visible(server) == list(range(300))
    assert pending(server) == 0


def test_stream_without_a_writer_of_streams_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import StructType

    from txstore.spark import datasource

    # As on Spark 4.0.
    monkeypatch.setattr(datasource, "STREAM_WRITERS", False)
    source = datasource.TxStoreDataSource({"path": "a", "appId": "x"})
    with pytest.raises(InvalidOptionError, match=r"(?s)Spark 4.1 is the first .*hint: foreachBatch"):
        source.streamWriter(StructType().add("body", "binary"), False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "option path: give either path or brokers"),
        ({"path": "a", "brokers": "b:1"}, "option brokers: give either path or brokers"),
        ({"path": "s3://bucket/store"}, "option path: must be a local path"),
        ({"brokers": "nowhere"}, "option brokers: invalid address 'nowhere'"),
        ({"path": "a", "appId": "x"}, "option batchId: missing"),
        ({"path": "a", "batchId": "1"}, "option appId: missing"),
        ({"path": "a", "appId": "a b", "batchId": "1"}, "option appId: must be 1 to 128 letters"),
        ({"path": "a", "appId": "x", "batchId": "-1"}, "option batchId: must be a whole number"),
        ({"path": "a", "apId": "x"}, "option apId: unknown option\nhint: did you mean appId?"),
        ({"path": "a", "accessKey": "x"}, "option accessKey: applies only with secretKey"),
    ],
)
def test_errors_name_the_option(given: dict[str, str], text: str) -> None:
    from txstore.spark.sink.options import WriteOptions

    with pytest.raises(InvalidOptionError) as raised:
        WriteOptions.of(given)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"topic": "string"}, "the column body is missing"),
        ({"body": "binary"}, "the column topic is missing"),
        ({"topic": "string", "body": "integer"}, "column body must be binary or string, got int"),
        ({"topic": "string", "body": "binary", "size": "integer"}, "a write has no column 'size'"),
    ],
)
def test_errors_name_the_column(columns: dict[str, str], text: str) -> None:
    from pyspark.sql.types import StructType

    from txstore.spark.sink.rows import check_columns

    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(InvalidOptionError, match=text):
        check_columns(schema, None)


def test_brokers_that_are_away_are_named() -> None:
    from tests.ports import free_port
    from txstore.spark.sink.options import WriteOptions
    from txstore.spark.sink.target import Target

    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachableError, match=f"option brokers: '{address}': .* cannot be reached"):
        Target(WriteOptions.of({"brokers": address}))
