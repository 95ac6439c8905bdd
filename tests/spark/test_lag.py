"""Guards the lag of a stream: bytes, seconds and rows in its progress agree with the log, and reach Prometheus.

The gauges of a query end with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.waiting import eventually
from txstore import Message, _native

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("limits")]
MESSAGES = 600


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages of almost the same size, because rows are estimated from bytes."""
    with txstore.open(tmp_path / "orders.store") as broker:
        producer = broker.producer("producers")
        for number in range(MESSAGES):
            producer.send(Message("orders", bytes(200), keys=[f"o-{number}"]))
    return tmp_path / "orders.store"


def writer(spark: SparkSession, store: Path, work: Path, rows: int) -> DataStreamWriter:
    frame = spark.readStream.format("txstore").options(columns="physical_offset", maxOffsetsPerTrigger=rows)
    named = frame.load(str(store)).writeStream.format("noop").queryName("orders-to-lake")
    return named.option("checkpointLocation", str(work / "checkpoint"))


def test_progress_has_the_lag_in_bytes_seconds_and_rows(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    from txstore.spark.lag import StreamLag

    with txstore.open(store, read_only=True) as broker:
        stored = broker.store.scan(0, 1 << 20)[0]
    ended = writer(spark, store, tmp_path, 250).trigger(availableNow=True).start()
    ended.awaitTermination()
    end = _native.log_range(store)[1]
    read = before = 0
    for progress in ended.recentProgress:
        (lag,) = StreamLag.of(progress)
        read += progress.numInputRows
        reached = json.loads(progress.sources[0].endOffset)["phy"]
        assert lag.bytes == end - reached
        milliseconds = stored[-1].store_timestamp_ms - stored[read - 1].store_timestamp_ms
        assert lag.seconds == (milliseconds / 1000 if lag.bytes else 0)
        said = json.loads(progress.sources[0].latestOffset)["lag"]
        assert said == {"bytes": lag.bytes, "seconds": lag.seconds, "batch_bytes": reached - before}
        before = reached
        assert lag.rows == pytest.approx(MESSAGES - read, rel=0.01)
    assert read == MESSAGES
    assert (lag.bytes, lag.seconds, lag.rows) == (0, 0, 0)


def test_listener_publishes_the_lag_until_the_query_ends(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    from txstore.spark.lag import StreamLagListener

    registry = CollectorRegistry()
    labels = {"query": "orders-to-lake", "source": "0"}

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"txstore_stream_lag_{name}", labels)

    listener = StreamLagListener(registry)
    spark.streams.addListener(listener)
    try:
        running = writer(spark, store, tmp_path, 60).trigger(processingTime="100000 hours").start()
        eventually(lambda: value("bytes") is not None)
        eventually(lambda: len(running.recentProgress) > 0)
        reached = json.loads(running.recentProgress[0].sources[0].endOffset)["phy"]
        assert value("bytes") == _native.log_range(store)[1] - reached > 0
        assert value("rows") == pytest.approx(MESSAGES - 60, rel=0.01)
        assert value("seconds") is not None
        running.stop()
        eventually(lambda: value("bytes") is None)
        assert [sample for family in registry.collect() for sample in family.samples] == []
    finally:
        spark.streams.removeListener(listener)


def test_lag_of_offsets_without_facts_is_unknown() -> None:
    from txstore.spark.lag import StreamLag

    nothing_read = {"v": 2, "phy": 0, "store": None, "last": None}
    latest = {"v": 2, "phy": 500, "store": None, "last": {"phy": 300, "id": "a", "ms": 9_000}}
    assert StreamLag.between(nothing_read, latest) == StreamLag(0, 500, None, None)
    assert StreamLag.between(latest, latest) == StreamLag(0, 0, 0.0, 0)
    # The clock stepped back, and the log is shorter than the query believes: nothing is left to read.
    assert StreamLag.between(latest, {**nothing_read, "last": {"phy": 0, "id": "b", "ms": 1}}).bytes == 0
    assert StreamLag.between(nothing_read, latest).estimated(0.01).rows == 5


def test_listener_without_prometheus_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from txstore.spark.lag import StreamLagListener

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'txstore\[spark,serve\]'"):
        StreamLagListener()
