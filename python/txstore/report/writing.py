"""Writing: the report of a store, without Spark.

In:     a store's directory, a folder.
Out:    in the folder, `transactions/` (Parquet), `report.html` and `report.json`.
Always: reads the whole log, twice, and keeps in memory the open transactions and a few batches of rows. The folder has
        the report of the last whole run until this one has all its rows.
Not here: reading only the new part of a log (the Spark job).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from txstore import _native
from txstore.errors import InvalidOptionError
from txstore.report.last_run import WHOLE, LastRun
from txstore.report.page import page
from txstore.report.summary import Statistics, Summary

__all__ = ["PAGE", "ROWS", "write_page", "write_report"]

ROWS, PAGE = "transactions", "report.html"
_NEW = "transactions.new"
# So many rows are counted together, and are a row group.
_COUNTED_ROWS = 1 << 17
_TEXTS = ["producer_group", "real_topic", "state"]


def write_report(
    store: str | Path,
    folder: str | Path,
    *,
    now: datetime | None = None,
    pending_after: timedelta = timedelta(minutes=10),
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Writes the report of all transactions in a store's log, and returns its statistics.

    `now` is the time that ages refer to; `pending_after` the age from which a pending transaction is suspicious.
    `progress` gets the number of rows so far.

    Raises InvalidOptionError if the folder has other files, or the report of another store; otherwise as `txstore.scan`
    does.
    """
    path, target = str(Path(store).resolve()), Path(folder)
    last = LastRun.load(target, path, WHOLE)
    _check(target)
    log = _native.log_range(path)
    scan = _native.Scan(path, view="transactions", shows_missing=True)
    statistics = Statistics(
        log[0],
        now_ms=round((now or datetime.now().astimezone()).timestamp() * 1_000),
        pending_after_ms=round(pending_after.total_seconds() * 1_000),
    )
    new = target / _NEW
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    _write_rows(scan, new / "part-00000.parquet", statistics, progress)
    summary = statistics.summary(path, log)
    shutil.rmtree(target / ROWS, ignore_errors=True)
    new.rename(target / ROWS)
    write_page(summary, target, WHOLE, last)
    return summary


def write_page(summary: Summary, folder: Path, rows_of: str, last: LastRun | None) -> Path:
    """Writes the page of a summary, compared with the last run, and notes its numbers for the next run."""
    found = folder / PAGE
    new = folder / f"{PAGE}.tmp"
    new.write_text(page(summary, last, folder.resolve() / ROWS))
    new.replace(found)
    LastRun.of(summary, rows_of).save(folder)
    return found


def _check(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidOptionError(f"option output: {folder} is a file\nhint: name a folder", option="output")
    known = {ROWS, _NEW, PAGE, "report.json"}
    if folder.exists() and any(entry.name.removesuffix(".tmp") not in known for entry in folder.iterdir()):
        raise InvalidOptionError(
            f"option output: {folder} contains other files\nhint: name an empty or a new folder", option="output"
        )


def _write_rows(scan: _native.Scan, file: Path, statistics: Statistics, progress: Callable[[int], None] | None) -> None:
    """Writes the rows while the next ones are folded, and counts them."""
    done = 0
    with pa.RecordBatchReader.from_stream(scan) as reader:
        # Offsets and times differ little from row to row, and no two ids are equal.
        delta = [field.name for field in reader.schema if pa.types.is_timestamp(field.type)]
        with (
            ThreadPoolExecutor(1) as counting,
            pyarrow.parquet.ParquetWriter(
                file, reader.schema, compression="snappy", use_dictionary=_TEXTS,
                column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            ) as writer,
        ):  # fmt: skip
            counted: Future[None] | None = None
            for table in _ahead(_tables(_rows(reader, scan))):
                if counted is not None:
                    counted.result()
                counted = counting.submit(statistics.add, table)
                writer.write_table(table)
                done += table.num_rows
                if progress is not None:
                    progress(done)
            if counted is not None:
                counted.result()


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Joins batches."""
    joined: list[pa.RecordBatch] = []
    for batch in batches:
        joined.append(batch)
        if sum(one.num_rows for one in joined) >= _COUNTED_ROWS:
            yield pa.Table.from_batches(joined)
            joined = []
    if joined:
        yield pa.Table.from_batches(joined)


def _rows(reader: pa.RecordBatchReader, scan: _native.Scan) -> Iterator[pa.RecordBatch]:
    try:
        for batch in reader:
            if batch.num_rows:
                yield batch
    except (OSError, pa.ArrowException):
        scan.raise_failure()
        raise


def _ahead(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Returns tables, each while a thread reads the next one."""
    found = iter(tables)
    with ThreadPoolExecutor(1) as reading:
        following = reading.submit(next, found, None)
        while (table := following.result()) is not None:
            following = reading.submit(next, found, None)
            yield table
