"""Guards reads of several stores at once: each row names its store, and a stream continues in each of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txstore
from txstore import Message
from txstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


def make(path: Path, topic: str, count: int) -> None:
    with txstore.open(path, mapped_file_size_commit_log=1 << 14) as broker:
        if topic not in broker.topics():
            broker.create_topic(topic, 1)
        broker.producer("producers").send_batch([Message(topic, b"x" * 50)] * count)


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    paths = []
    for name, topic, count in (("eu", "orders", 300), ("us", "orders", 200), ("asia", "payments", 100)):
        make(tmp_path / name, topic, count)
        paths.append(str(tmp_path / name))
    return paths


def counted(rows: Iterable[Row]) -> dict[tuple[str, ...], int]:
    return dict(Counter(tuple(row) for row in rows))


def test_a_frame_of_several_stores(spark: SparkSession, stores: list[str]) -> None:
    eu, us, asia = stores
    whole = {(eu, "orders"): 300, (us, "orders"): 200, (asia, "payments"): 100}
    frame = spark.read.format("txstore").option("columns", "store,topic").load(stores)
    assert counted(frame.collect()) == whole
    by_option = spark.read.format("txstore").option("paths", json.dumps(stores)).load()
    assert by_option.columns[-1] == "store"
    assert counted(by_option.select("store", "topic").collect()) == whole
    orders = spark.read.format("txstore").options(subscribe="orders", columns="store", minPartitions=7).load(stores)
    assert counted(orders.collect()) == {(eu,): 300, (us,): 200}
    assigned = spark.read.format("txstore").options(assign='{"payments":[0]}', columns="store").load(stores)
    assert counted(assigned.collect()) == {(asia,): 100}
    one = spark.read.format("txstore").option("columns", "store,topic").load(eu)
    assert counted(one.collect()) == {(eu, "orders"): 300}
    assert "store" not in spark.read.format("txstore").load(eu).columns
    assert spark.read.format("txstore").option("view", "transactions").load(stores).count() == 0


def test_a_stream_of_several_stores(spark: SparkSession, stores: list[str], tmp_path: Path) -> None:
    checkpoint, out = str(tmp_path / "checkpoint"), str(tmp_path / "out")

    def run(paths: list[str]) -> dict[tuple[str, ...], int]:
        options = {"paths": json.dumps(paths), "columns": "store"}
        frame = spark.readStream.format("txstore").options(**options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(out).awaitTermination()
        return counted(spark.read.parquet(out).collect())

    eu, us, asia = stores
    assert run(stores) == {(eu,): 300, (us,): 200, (asia,): 100}
    make(Path(us), "orders", 50)
    assert run([asia, us, eu]) == {(eu,): 300, (us,): 250, (asia,): 100}
    with pytest.raises(Exception, match="the checkpoint is one of"):
        run([eu, us])


@pytest.mark.usefixtures("limits")
def test_a_limited_micro_batch_has_a_share_of_each_store(stores: list[str]) -> None:
    from pyspark.sql.types import StringType, StructType

    from txstore.spark.lag import StreamLag
    from txstore.spark.options import ReadOptions
    from txstore.spark.stream import TxStoreStreamReader
    from txstore.spark.versions import ReadMaxRows

    options = {"paths": json.dumps(stores), "maxOffsetsPerTrigger": "90"}
    schema = StructType().add("store", StringType(), nullable=False)
    stream = TxStoreStreamReader(ReadOptions.of(options), schema)
    at, batches = stream.initialOffset(), []
    while True:
        end = stream.latestOffset(at, ReadMaxRows(90))
        if end == at:
            break
        rows: Counter[str] = Counter()
        for part in stream.partitions(at, end):
            for batch in stream.read(part):
                rows.update(batch.column("store").to_pylist())
        batches.append([rows[path] for path in stores])
        at = end
    assert batches == [[30, 30, 30]] * 3 + [[30, 30, 10], [45, 45, 0], [45, 35, 0], [90, 0, 0]]
    latest = stream.reportLatestOffset()
    assert latest.pop("lag") == {"bytes": 0, "seconds": 0.0, "batch_bytes": 0}
    assert StreamLag.between(stream.initialOffset(), latest).bytes == sum(of["phy"] for of in latest["stores"].values())


BAD = [
    ({"paths": "orders.store"}, "must be a JSON list of paths"),
    ({"paths": '["a","a"]'}, "twice"),
    ({"paths": '["a","b"]', "path": "c"}, "keep one of the two"),
    ({"paths": '["a","b"]', "startingPhysicalOffset": "0"}, "those of one store"),
    ({"paths": '["a","b"]', "endingOffsets": '{"orders":{"0":5}}'}, "endingOffsetsByTimestamp"),
    ({"paths": "[]"}, "missing"),
]


@pytest.mark.parametrize(("options", "says"), BAD)
def test_wrong_paths_are_named(options: dict[str, str], says: str) -> None:
    from txstore.spark.options import ReadOptions

    with pytest.raises(InvalidOptionError) as raised:
        ReadOptions.of(options)
    assert says in str(raised.value)
