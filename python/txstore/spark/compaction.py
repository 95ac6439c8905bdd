"""Compaction: rewrites each finished day of an archive in few files.

In:     an archive, `topic=…/day=…/batch=N/*.parquet`, and the number of the micro-batch that is about to be written.
Out:    for each topic and day one folder, with the number of the last batch in it, and files of about 512 MB.
Always: exactly once, even after SIGKILL. A day is first written completely to `_compaction/`, which readers of Parquet
        skip, compared with what it replaces, and made durable; then two renames replace it. A job that was killed
        between the two completes them at its next start: until then readers do not see that day. Only batches that
        the checkpoint has as committed are rewritten, because another one would write its own folder again.
Not here: the newest day, which still grows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Compaction"]

_FOLDER = "_compaction"
_FILE_BYTES = 512 << 20


class Compaction:
    """The compaction of one archive. One job at a time may write to it."""

    def __init__(self, spark: SparkSession, lake: Path, file_bytes: int = _FILE_BYTES) -> None:
        self._spark, self._lake, self._file_bytes = spark, lake, file_bytes
        self._new, self._ready, self._old = (lake / _FOLDER / name for name in ("new", "ready", "old"))
        # The newest day at the last run. While it is the same, no other day has been finished.
        self._newest: str | None = None

    def finish(self) -> None:
        """Completes what a killed job left. Call it before anything else writes to the archive."""
        for day in list(_days(self._ready)):
            self._replace(day.relative_to(self._ready))
        shutil.rmtree(self._lake / _FOLDER, ignore_errors=True)

    def run(self, before: int | None = None) -> list[Path]:
        """Rewrites the finished days and returns their folders.

        `before` is the first batch that may still be written; None if all are committed.
        """
        days = sorted(_days(self._lake))
        newest = max((day.name for day in days), default=None)
        if newest == self._newest:
            return []
        self._newest = newest
        return [day for day in days if day.name != newest and self._rewrite(day, before)]

    def _rewrite(self, day: Path, before: int | None) -> bool:
        batches = sorted(day.glob("batch=*"), key=_number)
        if len(batches) < 2 or (before is not None and _number(batches[-1]) >= before):
            return False
        name = day.relative_to(self._lake)
        staged = self._new / name / batches[-1].name
        size = sum(file.stat().st_size for batch in batches for file in batch.glob("*.parquet"))
        rows = self._spark.read.parquet(*map(str, batches))
        sorted_rows = rows.repartitionByRange(-(-size // self._file_bytes) or 1, "physical_offset")
        sorted_rows.sortWithinPartitions("physical_offset").write.mode("overwrite").parquet(str(staged))
        expected, found = rows.count(), self._spark.read.parquet(str(staged)).count()
        if found != expected:
            raise RuntimeError(
                f"the compaction of {day} has {found:,} rows instead of {expected:,}; nothing is removed"
            )
        # The checkpoint, too: a batch that lost power makes uncommitted must not have been rewritten.
        os.sync()
        (self._ready / name).parent.mkdir(parents=True, exist_ok=True)
        (self._new / name).rename(self._ready / name)
        self._replace(name)
        return True

    def _replace(self, name: Path) -> None:
        """Replaces a day by its compacted form, as far as that has not been done."""
        day, ready, old = self._lake / name, self._ready / name, self._old / name
        if day.exists():
            old.parent.mkdir(parents=True, exist_ok=True)
            day.rename(old)
        ready.rename(day)
        os.sync()
        shutil.rmtree(old)


def _days(folder: Path) -> Iterator[Path]:
    return folder.glob("topic=*/day=*")


def _number(batch: Path) -> int:
    return int(batch.name.partition("=")[2])
