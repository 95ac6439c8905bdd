"""Guards streams: each row appears once, however the stream is cut into micro-batches, stopped, killed and
restarted.

Records that retention removed before they were read are an error, or, on request, a gap.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from tests.spark.conftest import per_trigger
from tests.spark.stores import message
from txstore import Message, _native
from txstore.errors import InvalidOptionError, StoreCorruptError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
# `make torture` asks for five kills: each is a start of Spark and some minutes of work.
KILLS, KILLED_ROWS = int(os.environ.get("TXSTORE_SPARK_KILLS", "5")), 2_000_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store of 600 messages in small files."""
    with txstore.open(tmp_path / "orders.store", mapped_file_size_commit_log=1 << 16) as broker:
        producer = broker.producer("producers")
        for number in range(600):
            producer.send(message(number))
    return tmp_path / "orders.store"


def written(spark: SparkSession, out: Path) -> list[int]:
    return sorted(row.physical_offset for row in spark.read.parquet(str(out)).collect())


def expected(store: Path) -> list[int]:
    return [message.physical_offset for message in _records(store)]


def _records(store: Path) -> Iterator[txstore.StoredMessage]:
    with txstore.open(store, read_only=True) as broker:
        yield from broker.store.scan(broker.store.stat().min_physical_offset, 1 << 20)[0]


def run(spark: SparkSession, store: Path, work: Path, **options: object) -> list[int]:
    """Runs a query up to the log's present end; returns the rows of each micro-batch."""
    reader = spark.readStream.format("txstore").option("columns", "physical_offset")
    frame = reader.options(**{name: str(value) for name, value in options.items()}).load(str(store))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(work / "out"))
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.mark.usefixtures("limits")
def test_stream_reads_all_in_batches_and_continues_after_a_stop(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    rows = run(spark, store, tmp_path, maxOffsetsPerTrigger=250)
    assert [count for count in rows if count] == [250, 250, 100]
    assert written(spark, tmp_path / "out") == expected(store)
    with txstore.open(store) as broker:
        for number in range(50):
            broker.producer(f"more-{number}").send(message(number))
        run(spark, store, tmp_path, maxBytesPerTrigger="20k")
    assert written(spark, tmp_path / "out") == expected(store)
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends = [json.loads(path.read_text().splitlines()[-1]) for path in offsets]
    assert ends == sorted(ends, key=lambda end: end["phy"])
    assert (ends[-1]["v"], ends[-1]["phy"]) == (2, _native.log_range(store)[1])
    assert ends[-1]["store"] == _native.log_store_id(store)
    assert ends[-1]["last"]["phy"] == expected(store)[-1]


def test_stream_continues_after_its_store_has_grown(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    assert sum(run(spark, store, tmp_path)) == 600
    assert sum(run(spark, store, tmp_path)) == 0
    with txstore.open(store) as broker:
        broker.producer("more").send_batch([Message("orders", b"more")] * 40)
        assert sum(run(spark, store, tmp_path)) == 40
    assert written(spark, tmp_path / "out") == expected(store)


def test_limits_are_refused_where_spark_has_none(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error, a limit would be ignored silently."""
    from txstore.spark import triggers
    from txstore.spark.datasource import TxStoreDataSource

    monkeypatch.setattr(triggers, "LIMITS", False)
    for option in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
        source = TxStoreDataSource({"path": str(store), option: "100"})
        with pytest.raises(InvalidOptionError, match=rf"option {option}: Spark [\d.]+ cannot limit a micro-batch"):
            source.streamReader(source.schema())


def test_reader_without_limits_ends_at_the_end_of_the_log(store: Path, tmp_path: Path) -> None:
    """As Spark 4.0 and 4.1 call it: for the end it passes no arguments, so the start is compared when it is read."""
    from txstore.spark.datasource import TxStoreDataSource

    source = TxStoreDataSource({"path": str(store), "columns": "size"})
    reader = source.streamReader(source.schema())
    begin, end = reader.initialOffset(), reader.latestOffset()
    assert end["phy"] == _native.log_range(store)[1]
    parts = reader.partitions(begin, end)
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 600
    with pytest.raises(StoreCorruptError, match="before the stream's offset"):
        reader.partitions(end, begin)


def test_removed_files_are_an_error_or_a_gap(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    run(spark, store, tmp_path)
    before = written(spark, tmp_path / "out")
    with txstore.open(store) as broker:
        producer = broker.producer("more")
        for number in range(600):
            producer.send(message(number))
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    gone = [path for path in files if int(path.name) < before[-1] + (1 << 17)]
    for path in gone:
        path.unlink()
    first = int(gone[-1].name) + (1 << 16)
    with pytest.raises(Exception, match=r"retention removed offset \d+ of the commit log before the stream"):
        run(spark, store, tmp_path)
    run(spark, store, tmp_path, failOnDataLoss="false")
    left = [offset for offset in expected(store) if offset >= first]
    assert len(left) > 100
    assert written(spark, tmp_path / "out") == before + left


def test_foreign_checkpoint_is_named(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    run(spark, store, tmp_path)
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    lines = newest.read_text().splitlines()
    newest.write_text("\n".join([*lines[:-1], '{"v":1,"phy":99999999}']))
    with pytest.raises(Exception, match="start with a new checkpoint"):
        run(spark, store, tmp_path)
    newest.write_text("\n".join([*lines[:-1], '{"partition-0":7}']))
    with pytest.raises(Exception, match="is not a valid offset"):
        run(spark, store, tmp_path)


def test_stream_begins_at_the_requested_offset(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    every = expected(store)
    run(spark, store, tmp_path / "middle", startingPhysicalOffset=every[400] - 1)
    assert written(spark, tmp_path / "middle" / "out") == every[400:]
    assert sum(run(spark, store, tmp_path / "latest", startingOffsets="latest")) == 0
    limit = per_trigger(maxOffsetsPerTrigger="100")
    topics = run(spark, store, tmp_path / "payments", subscribe="payments", **limit)
    assert [count for count in topics if count] == ([100, 100, 100] if limit else [300])
    for options in ({"view": "transactions"}, {"endingTimestamp": 5}, {"startingPhysicalOffset": 1 << 40}):
        with pytest.raises(Exception, match="InvalidOptionError"):
            run(spark, store, tmp_path / "wrong", **options)


@pytest.mark.torture
@pytest.mark.kill
def test_killed_queries_lose_no_row_and_show_none_twice(spark: SparkSession, tmp_path: Path) -> None:
    """SIGKILL for driver, JVM and workers at random moments; then to the end."""
    seed = int(os.environ.get("TXSTORE_SEED", time.time_ns() % 1_000_000))
    print(f"TXSTORE_SEED={seed}")
    chance = random.Random(seed)
    store, work = tmp_path / "orders.store", tmp_path
    rows = int(os.environ.get("TXSTORE_KILL_ROWS", KILLED_ROWS))
    with txstore.open(store, mapped_file_size_commit_log=1 << 26) as broker:
        producer = broker.producer("producers")
        batch = [Message("orders", b"%d" % number) for number in range(1_000)]
        for _ in range(rows // len(batch)):
            producer.send_batch(batch)
    command = [sys.executable, "-m", "tests.spark.query", str(store), str(work / "checkpoint"), str(work / "out")]
    kills = 0
    while kills < KILLS:
        with subprocess.Popen([*command, str(rows // 40)], stdout=subprocess.PIPE, start_new_session=True) as query:
            assert query.stdout is not None
            assert query.stdout.readline() == b"started\n"
            before = committed(work)
            # After at least one more micro-batch is committed or logged, at any moment of the next ones.
            until = time.monotonic() + 120
            while committed(work) <= before + 1 and query.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(chance.random() * 0.5)
            ended = query.poll() is not None
            os.killpg(query.pid, signal.SIGKILL)
        assert not ended, "the query came to its end before it was killed: take smaller micro-batches"
        kills += 1
        print(f"killed {kills} times, {committed(work)} micro-batches committed", flush=True)
    subprocess.run([*command, str(rows)], check=True, timeout=600)
    frame = spark.read.parquet(str(work / "out"))
    sums = "sum(physical_offset)", "sum(size)"
    totals = frame.selectExpr("count(*)", "count(distinct physical_offset)", *sums).first()
    scan = spark.read.format("txstore").option("columns", "physical_offset,size").load(str(store))
    assert totals is not None
    assert totals[0] == totals[1] == rows
    assert totals[2:] == scan.selectExpr(*sums).first()
    shutil.rmtree(work)


def committed(work: Path) -> int:
    """Micro-batches that are committed according to the checkpoint."""
    folder = work / "checkpoint" / "commits"
    return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0
