"""Guards streams into a store: each row of a query is visible once, whatever Spark repeats, aborts or restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.spark.conftest import per_trigger
from tests.waiting import eventually
from txstore import Message
from txstore.errors import InvalidOptionError

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")
pytest.importorskip("pyspark", reason="pyspark is not installed: make installs requirements-dev.lock")

from tests.spark.test_sink import SETTINGS, batch_of, options, pending, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def server(tmp_path: Path) -> Iterator[txstore.Server]:
    path = tmp_path / "paid.store"
    with txstore.serve(path, listen="127.0.0.1:0", name_server="127.0.0.1:0", **SETTINGS) as server:
        yield server


@pytest.fixture(autouse=True)
def _stream_writers() -> None:
    from txstore.spark.versions import STREAM_WRITERS

    if not STREAM_WRITERS:
        pytest.skip("Spark 4.1 is the first that writes streams to a Python source")


class Copy:
    """A query from a store's files to a server, up to the present end of the files."""

    def __init__(self, spark: SparkSession, source: Path, server: txstore.Server, work: Path) -> None:
        self._spark, self._source, self._server = spark, source, server
        self._checkpoint = work / "checkpoint"

    def run(self, body: str = "CAST(body AS STRING)") -> None:
        """Runs until all that is in the source now is done; the first of its errors is raised."""
        assert self._server.name_server is not None
        read = self._spark.readStream.format("txstore").options(
            columns="body", **per_trigger(maxOffsetsPerTrigger="200")
        )
        rows = read.load(str(self._source)).selectExpr("'paid' AS topic", f"{body} AS body")
        writer = rows.writeStream.format("txstore").option("brokers", self._server.name_server).option("appId", "copy")
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        writer.queryName("copies").trigger(availableNow=True).start().awaitTermination()

    def forget_last(self) -> None:
        """Does what a kill before Spark's own commit log leaves: the last batch is not noted."""
        commits = self._checkpoint / "commits"
        last = self.batches - 1
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    @property
    def batches(self) -> int:
        """How many micro-batches are done, by the checkpoint."""
        return sum(path.name.isdigit() for path in (self._checkpoint / "commits").iterdir())


def send(source: Path, numbers: range) -> None:
    with txstore.open(source, mapped_file_size_commit_log=1 << 16) as broker:
        broker.producer("producers").send_batch([Message("orders", b"%d" % number) for number in numbers])


def labels(server: txstore.Server) -> set[str]:
    """Which batches messages say that they are of."""
    broker = server.broker
    messages = [one for extent in broker.queues("paid") for one in broker.read("paid", extent.queue_id, 0, 1_000)[0]]
    return {message.properties["SPARK_BATCH"] for message in messages if "SPARK_BATCH" in message.properties}


@pytest.fixture
def copy(spark: SparkSession, server: txstore.Server, tmp_path: Path) -> Copy:
    send(tmp_path / "orders.store", range(300))
    return Copy(spark, tmp_path / "orders.store", server, tmp_path)


def test_stream_continues_from_its_checkpoint_and_publishes_a_repeated_batch_once(
    copy: Copy, server: txstore.Server, tmp_path: Path
) -> None:
    copy.run()
    assert visible(server) == list(range(300))
    before = copy.batches
    copy.forget_last()
    send(tmp_path / "orders.store", range(300, 350))
    copy.run()
    if not per_trigger(any="1"):
        # Spark 4.1 ends such a query after one micro-batch, which was the repeated one.
        copy.run()
    assert copy.batches == before + 1
    assert visible(server) == list(range(350))
    assert labels(server) == {f"copy:{number}" for number in range(copy.batches)}
    assert pending(server) == 0


def test_batch_that_fails_leaves_nothing_and_is_written_again(copy: Copy, server: txstore.Server) -> None:
    bad = "CASE WHEN body = CAST('299' AS BINARY) THEN NULL ELSE CAST(body AS STRING) END"
    with pytest.raises(Exception, match=r"a row cannot be sent .* body is null"):
        copy.run(bad)
    done = visible(server)
    assert done == list(range(len(done)))
    assert len(done) < 300
    copy.run()
    assert visible(server) == list(range(300))
    eventually(lambda: pending(server) == 0)


def test_abort_rolls_back_what_tasks_stored(server: txstore.Server) -> None:
    from pyspark.sql.types import StructType

    from txstore.spark.sink.options import WriteOptions
    from txstore.spark.sink.stream_writer import MessageStreamWriter
    from txstore.spark.sink.writer import written

    assert server.name_server is not None
    stream = WriteOptions.of({"brokers": server.name_server, "appId": "copy"}, is_stream=True)
    writer = MessageStreamWriter(stream, StructType().add("topic", "string").add("body", "binary"))
    stored = written(options(server), "copy", 0, iter([batch_of(range(10))]))
    assert pending(server) == 1
    # The other task has failed.
    writer.abort([stored, None], 0)
    assert pending(server) == 0
    assert visible(server) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "option appId: missing: it tells the stream's batches from those of other queries"),
        ({"appId": "x", "batchId": "1"}, "option batchId: a stream has the numbers of its batches from Spark"),
        ({"appId": "x", "apId": "y"}, "option apId: unknown option\nhint: did you mean appId?"),
    ],
)
def test_errors_name_the_option(given: dict[str, str], text: str) -> None:
    from txstore.spark.sink.options import WriteOptions

    with pytest.raises(InvalidOptionError) as raised:
        WriteOptions.of({"path": "a"} | given, is_stream=True)
    assert text in str(raised.value)


def test_mode_that_replaces_is_refused() -> None:
    from pyspark.sql.types import StructType

    from txstore.spark.datasource import TxStoreDataSource

    with pytest.raises(InvalidOptionError, match=r"option outputMode: .*\nhint: outputMode\('append'\)"):
        TxStoreDataSource({"path": "a", "appId": "x"}).streamWriter(StructType().add("body", "binary"), True)
