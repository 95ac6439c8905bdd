"""Guards a store's identity: a query, a report and an archive notice that another store is at their path.

Also where every record has the same length, so that each offset exists in the new store, too. The same store,
restarted, grown or cut by retention, is never taken for another one.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txstore
from spark import archive_commit_log
from tests.copies import killed_copy
from tests.spark.conftest import per_trigger
from txstore import Message, _native
from txstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstore.spark.stream import TxStoreStreamReader

pytestmark = pytest.mark.spark
SEED = int(os.environ.get("TXSTORE_SEED", time.time_ns() % 1_000_000))
SEEDS = 20
FILE_BYTES = 1 << 14
ANOTHER = "is not the store that"


def make(store: Path, messages: int, *, brokers: bool = False) -> None:
    """Replaces the store at that path by one of records that are all alike."""
    shutil.rmtree(store, ignore_errors=True)
    grow(store, messages)
    if brokers:
        shutil.rmtree(store / "txstore")  # What a broker's store does not have: our settings, and so an id.


def grow(store: Path, messages: int) -> None:
    with txstore.open(store, mapped_file_size_commit_log=FILE_BYTES) as broker:
        broker.create_topic("orders", 1)
        broker.producer("producers").send_batch([Message("orders", b"always the same")] * messages)


def remove_files_below(store: Path, physical_offset: int) -> int:
    """Retention: removes the log's files that end at or below an offset; returns where the log begins then."""
    with txstore.open(store) as broker:
        minimum = broker.store.remove_log_files(physical_offset, keep_unread=False).minimum
    assert minimum > 0
    return minimum


# The stream -----------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, store: Path, work: Path, **options: object) -> None:
    """Runs a query up to the log's present end."""
    reader = spark.readStream.format("txstore").option("columns", "physical_offset")
    frame = reader.options(**{name: str(value) for name, value in options.items()}).load(str(store))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    writer.trigger(availableNow=True).start(str(work / "out")).awaitTermination()


def shown(spark: SparkSession, work: Path) -> int:
    return spark.read.parquet(str(work / "out")).count()


def stream(store: Path, **options: object) -> TxStoreStreamReader:
    """The reader as Spark makes it, without a Java machine."""
    from txstore.spark.datasource import TxStoreDataSource
    from txstore.spark.stream import TxStoreStreamReader

    source = TxStoreDataSource({"path": str(store), **{name: str(value) for name, value in options.items()}})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, TxStoreStreamReader)
    return reader


def kept(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset as it is read back from a checkpoint."""
    loaded: dict[str, Any] = json.loads(json.dumps(offset))
    return loaded


def read_all(store: Path, start: dict[str, Any] | None = None, **options: object) -> dict[str, Any]:
    """The offset in a query's checkpoint after it has read everything."""
    from txstore.spark.versions import ReadAllAvailable

    reader = stream(store, **options)
    begin = start or reader.initialOffset()
    end = reader.latestOffset(kept(begin), ReadAllAvailable())
    reader.partitions(kept(begin), kept(end))
    return kept(end)


@pytest.mark.parametrize("seeds", [3, pytest.param(SEEDS, marks=pytest.mark.torture)])
@pytest.mark.parametrize("brokers", [False, True], ids=["txstore", "broker"])
def test_query_does_not_continue_in_another_store(
    spark: SparkSession, tmp_path: Path, brokers: bool, seeds: int
) -> None:
    store, work = tmp_path / "orders.store", tmp_path / "work"
    make(store, 300, brokers=brokers)
    run(spark, store, work)
    for seed in range(SEED, SEED + seeds):
        print(f"TXSTORE_SEED={seed}")
        make(store, random.Random(seed).randrange(1, 1_000), brokers=brokers)
        with pytest.raises(Exception, match=ANOTHER):
            run(spark, store, work)
    assert shown(spark, work) == 300


@pytest.mark.parametrize("brokers", [False, True], ids=["txstore", "broker"])
@pytest.mark.parametrize("number", range(SEEDS))
def test_error_names_both_stores_and_what_to_do(tmp_path: Path, number: int, brokers: bool) -> None:
    seed = SEED + number
    print(f"TXSTORE_SEED={seed}")
    chance = random.Random(seed)
    store = tmp_path / "orders.store"
    make(store, chance.randrange(1, 400), brokers=brokers)
    end = read_all(store)
    was = _native.log_store_id(store)
    make(store, chance.randrange(1, 400), brokers=brokers)
    with pytest.raises(InvalidOptionError, match=ANOTHER) as caught:
        read_all(store, end)
    text = str(caught.value)
    assert caught.value.option == "checkpointLocation"
    assert f"message {end['last']['id']} at offset {end['last']['phy']}" in text
    assert "hint: use the path of the checkpoint's store" in text
    if brokers:
        assert (was, _native.log_store_id(store)) == (None, None)
        assert text.count("a store without an id") == 2
    else:
        assert f"store {was}" in text
        assert f"store {_native.log_store_id(store)}" in text
        assert was != _native.log_store_id(store)


def test_older_copy_that_was_continued_is_noticed(tmp_path: Path) -> None:
    """It has the store's own id: only the record shows the difference."""
    store, copy = tmp_path / "orders.store", tmp_path / "copy.store"
    make(store, 100)
    killed_copy(store, copy)
    grow(store, 100)
    end = read_all(store)
    shutil.rmtree(store)
    copy.rename(store)
    with pytest.raises(InvalidOptionError, match="read up to offset"):
        read_all(store, end)
    grow(store, 200)
    with pytest.raises(InvalidOptionError, match="an older copy was restored"):
        read_all(store, end)


def test_same_store_continues_through_restarts_growth_and_retention(spark: SparkSession, tmp_path: Path) -> None:
    store, work = tmp_path / "orders.store", tmp_path / "work"
    make(store, 300)
    run(spark, store, work)
    run(spark, store, work)
    for rows in (301, 500):
        grow(store, rows - shown(spark, work))
        run(spark, store, work, **per_trigger(maxOffsetsPerTrigger="70"))
        assert shown(spark, work) == rows
    grow(store, 300)
    # All records that were read are gone, and some that were not.
    remove_files_below(store, _native.log_range(store)[1] - FILE_BYTES)
    with pytest.raises(Exception, match=r"retention removed offset \d+ of the commit log before the stream"):
        run(spark, store, work)
    run(spark, store, work, failOnDataLoss="false")
    assert 500 < shown(spark, work) < 800


def test_id_decides_when_retention_removed_the_record(tmp_path: Path) -> None:
    store = tmp_path / "orders.store"
    make(store, 300)
    at = _native.log_range(store)[1] // FILE_BYTES * FILE_BYTES
    end = read_all(store, stream(store, startingPhysicalOffset=at).initialOffset(), startingPhysicalOffset=at)
    begin = kept(stream(store, startingPhysicalOffset=at).initialOffset())
    assert begin["phy"] == at > begin["last"]["phy"]
    assert remove_files_below(store, at) == at
    assert read_all(store, begin) == end
    shutil.rmtree(store)
    grow(store, 300)
    assert remove_files_below(store, at) == at
    with pytest.raises(InvalidOptionError, match=ANOTHER):
        read_all(store, begin)


def test_store_that_gets_or_loses_its_id_is_the_same_one(tmp_path: Path) -> None:
    """An older txstore that writes drops the id; the next opening of a newer one creates another."""
    store = tmp_path / "orders.store"
    settings = store / "txstore" / "settings.json"
    make(store, 100)
    with_id = read_all(store)
    for _ in range(2):
        known = json.loads(settings.read_text())
        settings.write_text(json.dumps({name: value for name, value in known.items() if name not in ("id", "idCrc")}))
        assert _native.log_store_id(store) is None
        without_id = read_all(store, with_id)
        assert without_id == with_id, "nothing has come"
        grow(store, 50)
        assert _native.log_store_id(store) not in (None, with_id["store"])
        with_id = read_all(store, with_id)


def test_checkpoint_of_version_1_starts_with_one_warning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, work = tmp_path / "orders.store", tmp_path / "work"
    make(store, 300)
    run(spark, store, work)
    (newest,) = (work / "checkpoint" / "offsets").glob("[0-9]*")
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    lines = newest.read_text().splitlines()
    old = {"v": 1, "phy": json.loads(lines[-1])["phy"]}
    newest.write_text("\n".join([*lines[:-1], json.dumps(old)]))
    grow(store, 10)
    run(spark, store, work)
    assert shown(spark, work) == 310
    make(store, 500)
    with pytest.raises(Exception, match=ANOTHER):
        run(spark, store, work)
    from txstore.spark.versions import ReadAllAvailable

    with caplog.at_level(logging.WARNING, "txstore.spark"):
        reader = stream(store)
        for _ in range(3):
            end = reader.latestOffset(old, ReadAllAvailable())
            reader.partitions(old, end)
    assert end["v"] == 2
    assert caplog.text.count("does not say which store it belongs to") == 1


@pytest.mark.parametrize(
    "offset", [{"v": 3, "phy": 1}, {"v": 2, "phy": 1}, {"v": 2, "phy": 1, "store": 7, "last": None}, {"partition-0": 7}]
)
def test_invalid_offset_is_named(tmp_path: Path, offset: dict[str, Any]) -> None:
    make(tmp_path / "orders.store", 10)
    with pytest.raises(InvalidOptionError, match="is not a valid offset"):
        read_all(tmp_path / "orders.store", offset)


# The report -----------------------------------------------------------------------------------------------------------


def test_report_does_not_continue_in_another_store(spark: SparkSession, tmp_path: Path) -> None:
    from spark import transaction_report
    from txstore.spark.report.ledger import Ledger

    store, folder = tmp_path / "orders.store", tmp_path / "report"
    make(store, 300)
    assert transaction_report.main([str(store), str(folder)]) == 0
    grow(store, 100)
    assert Ledger(spark, str(store), folder).advance() > 0
    assert Ledger(spark, str(store), folder).advance() == 0
    for seed in range(SEED, SEED + SEEDS):
        print(f"TXSTORE_SEED={seed}")
        make(store, random.Random(seed).randrange(1, 1_000))
        with pytest.raises(InvalidOptionError, match=ANOTHER):
            Ledger(spark, str(store), folder)
    assert transaction_report.main([str(store), str(folder)]) == 2
    assert transaction_report.main([str(store), str(folder), "--fresh"]) == 0


def test_ledger_of_version_1_continues_with_a_warning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from txstore.spark.report.ledger import Ledger

    store, folder = tmp_path / "orders.store", tmp_path / "report"
    make(store, 300)
    Ledger(spark, str(store), folder).advance()
    file = folder / "ledger.json"
    known = json.loads(file.read_text())
    del known["mark"]
    file.write_text(json.dumps(known | {"version": 1}))
    grow(store, 10)
    with caplog.at_level(logging.WARNING, "txstore.spark"):
        Ledger(spark, str(store), folder).advance()
        Ledger(spark, str(store), folder).advance()
    assert caplog.text.count("does not say which store it belongs to") == 1
    assert json.loads(file.read_text())["version"] == 2
    make(store, 500)
    with pytest.raises(InvalidOptionError, match=ANOTHER):
        Ledger(spark, str(store), folder)


# The archive ----------------------------------------------------------------------------------------------------------


def test_archive_does_not_continue_in_another_store(spark: SparkSession, tmp_path: Path, capsys: Any) -> None:
    store, lake = tmp_path / "orders.store", tmp_path / "lake"
    make(store, 300)
    assert archive_commit_log.main([str(store), str(lake)]) == 0
    grow(store, 100)
    assert archive_commit_log.main([str(store), str(lake)]) == 0
    capsys.readouterr()
    for seed in range(SEED, SEED + SEEDS):
        print(f"TXSTORE_SEED={seed}")
        make(store, random.Random(seed).randrange(1, 1_000))
        assert archive_commit_log.main([str(store), str(lake)]) == 1
        assert ANOTHER in capsys.readouterr().err
    assert spark.read.parquet(str(lake)).count() == 400


def in_zone(spark: SparkSession, zone: str, call: Callable[[], int]) -> int:
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        return call()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_batch_that_is_archived_again_in_another_time_zone_is_there_once(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    """A kill between writing and noting, and the next run in another time zone: at any hour one of the zones has
    another day.
    """
    lake = tmp_path / "lake"
    for zone in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
        commits = sorted((lake / "_checkpoint" / "commits").glob("*[0-9]*")) if lake.exists() else []
        for one in commits:
            one.unlink()
        assert in_zone(spark, zone, lambda: archive_commit_log.main([str(orders), str(lake)])) == 0
    frame = spark.read.parquet(str(lake))
    counts = frame.selectExpr("count(*)", "count(distinct physical_offset)").first()
    assert counts is not None
    assert counts[0] == counts[1] > 1_000
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    times = [F.expr(f"{name}(unix_millis(store_timestamp)) AS {name}_ms") for name in ("min", "max")]
    for row in frame.groupBy("day").agg(*times).collect():
        day_ms = (row.day - date(1970, 1, 1)) // timedelta(milliseconds=1)
        assert day_ms <= row.min_ms <= row.max_ms < day_ms + 86_400_000
