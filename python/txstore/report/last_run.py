"""Last run: the numbers of a report that the next one in the same folder compares itself with.

In:     a summary.
Out:    `report.json`: the store, who wrote the rows, the numbers.
Always: replaced as a whole.
Not here: how far the log is read (the ledger of the Spark job).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from txstore.errors import InvalidOptionError
from txstore.report.summary import Summary

__all__ = ["LEDGER", "WHOLE", "LastRun"]

# Who wrote the rows: the Spark job, run by run, or a report of the whole log.
LEDGER, WHOLE = "ledger", "whole"
_FILE, _VERSION = "report.json", 1


@dataclass(frozen=True)
class LastRun:
    """The numbers of a run."""

    store: str
    rows_of: str
    now_ms: int
    transactions: int
    counts: dict[str, int]
    suspicions: dict[str, int]
    latencies_ms: Sequence[int | None]
    version: int = _VERSION

    @classmethod
    def of(cls, summary: Summary, rows_of: str) -> LastRun:
        """Returns the numbers of a summary."""
        total = summary.all
        found = {one.name: one.count for one in summary.suspicions}
        return cls(
            summary.store, rows_of, summary.now_ms, total.transactions, total.counts, found, list(total.latencies_ms)
        )

    @classmethod
    def load(cls, folder: Path, store: str, rows_of: str) -> LastRun | None:
        """Returns the numbers of the last run in a folder; None if there was none.

        Raises InvalidOptionError if the folder has the report of another store, or rows that others write.
        """
        file = folder / _FILE
        if not file.exists():
            return None
        found = json.loads(file.read_text())
        if found.get("version") != _VERSION:
            return None
        last = cls(**found)
        if last.rows_of != rows_of:
            by = {LEDGER: "the Spark job", WHOLE: "txstore tx report"}[last.rows_of]
            raise InvalidOptionError(
                f"option output: {folder} has the report of {by}\nhint: name another folder", option="output"
            )
        if last.store != store:
            raise InvalidOptionError(
                f"option output: {folder} reports on {last.store}, not on {store}\nhint: name another folder",
                option="output",
            )
        return last

    def save(self, folder: Path) -> None:
        """Writes the numbers, for the next run."""
        new = folder / f"{_FILE}.tmp"
        with new.open("w") as file:
            json.dump(asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / _FILE)
