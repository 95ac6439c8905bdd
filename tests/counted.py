"""Counts the records of a store, as the view of statistics does.

In:     a store.
Out:    its rows, found by reading every record.
Not here: the view.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import txstore
from txstore import _native

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")

__all__ = ["assert_statistics", "counted"]


def assert_statistics(store: Path, folder: str | os.PathLike[str] | None = None) -> None:
    """Compares the view of statistics with a count of all records. `folder` keeps what is counted."""
    rows = counted(store)
    for threads in (1, 2):
        scan = txstore.scan(store, view="statistics", statistics_path=folder, threads=threads)
        assert pa.table(scan).to_pylist() == rows


def counted(store: Path) -> list[dict[str, Any]]:
    """Counts all records of a store, by file, topic and queue."""
    names = ["topic", "queue_id", "physical_offset", "size", "store_timestamp", "transaction_type"]
    records = pa.table(_native.Scan(store, view="commitlog", columns=names)).to_pylist()
    size = next(file.stat().st_size for file in sorted((store / "commitlog").glob("0*")) if file.stat().st_size)
    expected: dict[tuple[int, str, int], dict[str, Any]] = {}
    for record in records:
        # Records of the other types are in no queue. A half message is, and its sysflag says so.
        if record["transaction_type"] in ("prepared", "rollback") and record["topic"] != _native.HALF_TOPIC:
            continue
        file = record["physical_offset"] // size * size
        row = expected.setdefault(
            (file, record["topic"], record["queue_id"]),
            {"messages": 0, "bytes": 0, "first_store_timestamp": record["store_timestamp"]},
        )
        row["messages"] += 1
        row["bytes"] += record["size"]
        row["last_store_timestamp"] = record["store_timestamp"]
    return [
        {"topic": topic, "queue_id": queue, "file": file, **row}
        for (file, topic, queue), row in sorted(expected.items())
    ]
