"""Arrow: ranges of the commit log as record batches, for pyarrow, Polars, DuckDB, pandas and Spark.

In:     a store's directory and what to read of it.
Out:    a `Scan`, which any consumer of Arrow's C stream interface reads.
Always: takes no lock, starts no thread unless asked for several, does not disturb a process that writes the store,
        needs no other package.
Not here: decoding (the engine), Spark (`txstore.spark`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from txstore import _native
from txstore._native import Scan
from txstore.errors import InvalidOptionError

__all__ = ["Scan", "View", "scan"]

View = Literal["messages", "commitlog", "halves", "ops", "traces", "transactions", "statistics"]
_WITH_TOPICS = ("messages", "commitlog")


def scan(
    path: str | os.PathLike[str],
    *,
    view: View = "messages",
    columns: Iterable[str] | None = None,
    topics: Iterable[str] | None = None,
    topic_pattern: str | None = None,
    system_topics: bool = False,
    transaction_types: Iterable[str] | None = None,
    start_physical_offset: int | None = None,
    end_physical_offset: int | None = None,
    start_time: datetime | None = None,
    end_time: datetime | None = None,
    batch_rows: int | None = None,
    batch_bytes: int | None = None,
    bad_records: Literal["fail", "skip"] = "fail",
    fail_on_data_loss: bool = True,
    statistics_path: str | os.PathLike[str] | None = None,
    threads: int = 1,
) -> Scan:
    """Returns a range of a store's commit log, to be read by pyarrow, Polars, DuckDB or pandas.

    `polars.DataFrame(txstore.scan("orders.store"))`, `pyarrow.table(…)`, `duckdb.from_arrow(pyarrow.table(…))`; see
    docs/data/spark.md. Each read starts over and stops at the end that is visible then.

    Args:
        path: the store's directory.
        view: "messages" (what consumers can see), "commitlog" (every record), "halves", "ops" (a row for each half that
            an op message names), "traces" (every record of a transaction), "transactions" (a row for each) or
            "statistics" (a row for each queue in each file of the log).
        columns: names, in the order wanted; bodies and properties that are not named are not read.
        topics: only these topics; with "messages" and "commitlog".
        topic_pattern: only topics whose whole name matches this regular expression.
        system_topics: with "messages", also half, op, delay and other system topics.
        transaction_types: only these: "none", "prepared", "commit", "rollback".
        start_physical_offset: only records that begin here or later, in bytes of the commit log.
        end_physical_offset: only records that begin before it.
        start_time: only records stored at this time or later. Without a time zone: local time.
        end_time: only records stored before it.
        batch_rows: the most rows of a batch; 16,384 by default.
        batch_bytes: the most bytes of a batch's records; 8 MiB by default. A single larger record is a batch.
        bad_records: "fail" raises with file and offset; "skip" skips the record and counts it in `Scan.bad_records`.
        fail_on_data_loss: whether it is an error that retention removed the start of the range; if not, the scan begins
            after it and counts the bytes in `Scan.lost_bytes`.
        statistics_path: with "statistics", a folder outside of the store, created if its parent exists. What is counted
            of full log files without statistics in the store is kept there, and read by the next scan.
        threads: how many threads read the log, at most 256. Batches come in the log's order with any number. The view
            "transactions" uses one.

    Raises:
        StoreIOError: the path does not exist.
        ForeignStoreError: it is not a store.
        InvalidOptionError: an unknown view, column, topic or type, or a range outside the log.
        OffsetTooOldError: retention removed the start of the range.

    While it is read, the consumer raises its own error with the engine's text; `Scan.raise_failure()` raises the
    engine's error.
    """
    names = None if topics is None else _checked_topics(path, list(topics))
    if view not in _WITH_TOPICS and (names is not None or topic_pattern is not None):
        raise InvalidOptionError(f"option topics: the view {view!r} has no topics to select", option="topics")
    found = Scan(
        path,
        view=view,
        columns=None if columns is None else list(columns),
        topics=names,
        topic_pattern=topic_pattern,
        system_topics=system_topics,
        transaction_types=None if transaction_types is None else list(transaction_types),
        start=_physical_offset("start_physical_offset", start_physical_offset),
        end=_physical_offset("end_physical_offset", end_physical_offset),
        start_store_ms=_milliseconds(start_time),
        end_store_ms=_milliseconds(end_time),
        batch_rows=_size("batch_rows", batch_rows),
        batch_bytes=_size("batch_bytes", batch_bytes),
        skip_bad_records=_choice("bad_records", bad_records) == "skip",
        fail_on_data_loss=fail_on_data_loss,
        statistics_path=statistics_path,
        threads=_size("threads", threads) or 0,
    )
    found.check()
    return found


def _checked_topics(path: str | os.PathLike[str], names: list[str]) -> list[str]:
    """Returns the names. Raises InvalidOptionError if the store lacks one of these topics."""
    known = _native.log_topics(path)
    for name in names:
        if name not in known:
            raise InvalidOptionError(f"option topics: {unknown_topic(name, known)}", option="topics")
    return names


def unknown_topic(name: str, known: list[str]) -> str:
    """Returns the error text for a topic that a store does not have."""
    near = difflib.get_close_matches(name, known, 1)
    users = [topic for topic in known if not _native.is_system_topic(topic)]
    listed = ", ".join(users[:20]) + (", …" if len(users) > 20 else "") if users else "none yet"
    mean = f"did you mean {near[0]!r}? " if near else ""
    return f"the store has no topic {name!r}\nhint: {mean}its topics are: {listed}"


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def _physical_offset(option: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value < 1 << 63:
        raise InvalidOptionError(
            f"option {option}: must be between 0 and 9223372036854775807, got {value}", option=option
        )
    return value


def _size(option: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value < 1 << 63:
        raise InvalidOptionError(f"option {option}: must be 0 or more, got {value}", option=option)
    return value


def _choice(option: str, value: str) -> str:
    if value not in ("fail", "skip"):
        raise InvalidOptionError(f"option {option}: expected 'fail' or 'skip', got {value!r}", option=option)
    return value
