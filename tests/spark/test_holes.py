"""Guards Spark against lost pages: a page of the log that reads as zeros is an error in a batch and in a stream.

Told to skip, Spark loses exactly what is damaged.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import per_trigger
from tests.spark.holes import HOLES, SIZES, Hole, copy_store, dig, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=[pytest.param("large", marks=pytest.mark.torture), "small"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("holes") / "whole.store"
    write(path, SIZES[request.param])
    return path, SIZES[request.param]


@pytest.fixture
def damaged(whole: tuple[Path, int], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, Hole]]:
    path, file_size = whole
    copy = tmp_path / "orders.store"
    copy_store(path, copy)
    hole = dig(copy, request.param, file_size)
    if hole is None:
        pytest.skip("a log in one file has no such page")
    yield copy, hole
    shutil.rmtree(copy)


def stream(spark: SparkSession, store: Path, work: Path, **options: str) -> list[int]:
    """Runs a query over all of the log; returns what it has written."""
    reader = spark.readStream.format("txstore").options(columns="physical_offset", view="commitlog", **options)
    frame = reader.load(str(store))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(work / "out"))
    query.awaitTermination()
    return sorted(row.physical_offset for row in spark.read.parquet(str(work / "out")).collect())


# Each hole needs four reads of Spark. A few show what Spark adds to the scan (tests/unit/test_holes.py has all holes).
SOME = {"first record", "middle page", "last file"}


@pytest.mark.parametrize(
    "damaged",
    [pytest.param(hole, marks=() if hole in SOME else pytest.mark.torture) for hole in HOLES],
    indirect=True,
)
def test_hole_is_an_error_or_skipped(spark: SparkSession, damaged: tuple[Path, Hole], tmp_path: Path) -> None:
    store, hole = damaged
    source = spark.read.format("txstore").options(columns="physical_offset", view="commitlog")
    with pytest.raises(Exception, match=rf"{hole.file} is damaged at byte {hole.offset}(?s:.)*badRecords=skip"):
        source.load(str(store)).collect()
    skipping = spark.read.format("txstore").options(columns="physical_offset", view="commitlog", badRecords="skip")
    found = sorted(row.physical_offset for row in skipping.load(str(store)).collect())
    assert tuple(found) == hole.kept
    with pytest.raises(Exception, match=rf"{hole.file} is damaged at byte {hole.offset}"):
        stream(spark, store, tmp_path / "failing")
    kept = stream(spark, store, tmp_path / "skipping", badRecords="skip", **per_trigger(maxBytesPerTrigger="1m"))
    assert tuple(kept) == hole.kept
