"""Guards the compaction of an archive: a finished day becomes one folder with the same rows, also if a kill comes at
any step.

What may still be written, or still grows, is left as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark import archive_commit_log
from tests.spark.test_jobs import offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ROWS = 40
DAYS = ("2024-10-04", "2024-10-05", "2024-10-06")


@pytest.fixture(scope="module")
def archived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four batches of ten rows: the first day is in two of them, the second in two, the newest in one."""
    lake = tmp_path_factory.mktemp("archived") / "lake"
    time = "timestamp_millis(86400000L * (20000 + id DIV 15)) AS store_timestamp"
    for number in range(4):
        rows = spark.range(number * 10, number * 10 + 10).selectExpr("'orders' AS topic", "id AS physical_offset", time)
        archive_commit_log.write_batch(rows, number, lake)
    assert folders(lake) == [(0, "batch=0"), (0, "batch=1"), (1, "batch=1"), (1, "batch=2"), (2, "batch=3")]
    return lake


@pytest.fixture
def lake(archived: Path, tmp_path: Path) -> Path:
    return shutil.copytree(archived, tmp_path / "lake")


def folders(lake: Path) -> list[tuple[int, str]]:
    """The number of the day and the name of each folder."""
    return sorted((DAYS.index(path.parent.name[4:]), path.name) for path in lake.glob("topic=orders/day=*/batch=*"))


def rows(spark: SparkSession, lake: Path) -> list[tuple[int, str, str]]:
    found = spark.read.parquet(str(lake)).selectExpr("physical_offset", "topic", "string(day) AS day").collect()
    return sorted((row.physical_offset, row.topic, row.day) for row in found)


EVERY = [(number, "orders", DAYS[number // 15]) for number in range(ROWS)]


def test_finished_days_become_one_folder_each(spark: SparkSession, lake: Path) -> None:
    from txstore.spark.compaction import Compaction

    compaction = Compaction(spark, lake)
    assert [day.name[4:] for day in compaction.run(before=4)] == list(DAYS[:2])
    assert folders(lake) == [(0, "batch=1"), (1, "batch=2"), (2, "batch=3")]
    assert [len(list(path.glob("*.parquet"))) for path in lake.glob("topic=*/day=*/batch=*")] == [1, 1, 1]
    assert rows(spark, lake) == EVERY
    assert compaction.run(before=5) == Compaction(spark, lake).run() == []


def test_day_with_a_batch_that_may_be_written_again_is_left(spark: SparkSession, lake: Path) -> None:
    from txstore.spark.compaction import Compaction

    Compaction(spark, lake).run(before=2)
    assert folders(lake) == [(0, "batch=1"), (1, "batch=1"), (1, "batch=2"), (2, "batch=3")]
    assert rows(spark, lake) == EVERY


class Killed(BaseException):
    """The process has ended."""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.torture), 3])
def test_kill_at_any_step_loses_no_row_and_shows_none_twice(
    spark: SparkSession, archived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    from txstore.spark.compaction import Compaction

    left, steps = 0, 1 - every

    def killable(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return call(*arguments, **named)

        return step

    while True:
        steps += every
        lake = shutil.copytree(archived, tmp_path / f"lake-{steps}")
        left = steps
        with monkeypatch.context() as patch:
            for owner, name in ((Path, "rename"), (Path, "mkdir"), (os, "sync"), (shutil, "rmtree")):
                patch.setattr(owner, name, killable(getattr(owner, name)))
            try:
                Compaction(spark, lake).run(before=4)
                break
            except Killed:
                pass
        Compaction(spark, lake).finish()
        assert rows(spark, lake) == EVERY, f"killed at step {steps}"
        Compaction(spark, lake).run(before=4)
        assert folders(lake) == [(0, "batch=1"), (1, "batch=2"), (2, "batch=3")]
        assert rows(spark, lake) == EVERY, f"killed at step {steps}"
    assert steps > 10


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("keep", [False, True], ids=["compacted", "kept"])
def test_archive_compacts_the_days_before_the_newest(
    spark: SparkSession, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, keep: bool
) -> None:
    write = archive_commit_log.write_batch
    every = offsets(spark, orders)
    part = every[-1] // 3 + 1

    def written_over_days(batch: DataFrame, number: int, lake: Path) -> None:
        """The log's first third was stored two days ago, the second yesterday."""
        time = f"store_timestamp - make_dt_interval(2 - physical_offset DIV {part}) AS store_timestamp"
        others = [f"`{name}`" for name in batch.columns if name != "store_timestamp"]
        write(batch.selectExpr(*others, time), number, lake)

    monkeypatch.setattr(archive_commit_log, "write_batch", written_over_days)
    lake = tmp_path / "lake"
    arguments = [str(orders), str(lake), "--batch-bytes", "60k", *(["--keep-files"] if keep else [])]
    assert archive_commit_log.main(arguments) == 0
    days = sorted({path.parent.name for path in lake.glob("topic=orders/day=*/batch=*")})
    counts = [len(list(lake.glob(f"topic=orders/{day}/batch=*/*.parquet"))) for day in days]
    assert counts[-1] > 1
    assert (max(counts[:-1]) == 1) is not keep
    assert ("topic=orders/" + days[0] + ": compacted" in capsys.readouterr().out) is not keep
    found = sorted(row.physical_offset for row in spark.read.parquet(str(lake)).select("physical_offset").collect())
    assert found == every
