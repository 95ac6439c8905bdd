"""Ledger: a report's Parquet files, which each run extends.

In:     a store and a folder.
Out:    `transactions/run=N/open=…` with every transaction once, and `ledger.json`: the store, and how far it is read.
Always: a run first writes its own folder, then replaces `ledger.json`, and only then removes the open transactions of
        the run before. A run that is killed is repeated from the same offset. A run passes on the open transactions:
        those pending, or ended within the lookback, so that a late op or a second final finds them.
Not here: the rule.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.types import StructType

from txstore import _native
from txstore.errors import InvalidOptionError
from txstore.report.last_run import LEDGER, LastRun
from txstore.report.summary import COLUMNS, HALF_MISSING
from txstore.spark.identity import Keeper, Mark
from txstore.spark.report.fold import fold, read_traces, unfold
from txstore.spark.report.time_search import last_store_ms, offset_at

__all__ = ["LOOKBACK_MS", "Ledger"]

# A broker writes an op within seconds after the final message, and within a minute if a check was sent meanwhile.
LOOKBACK_MS = 3_600_000
_VERSION = 2
_VERSION_WITHOUT_MARK = 1
_KEEPER = Keeper("the report", "output", "use the path of the report's store, name another folder, or use --fresh")
_log = logging.getLogger("txstore.spark")
_FILE, _TABLE = "ledger.json", "transactions"


@dataclass(frozen=True)
class _State:
    """The content of `ledger.json`."""

    store: str
    # The first physical offset that the log had when the ledger began.
    log_first: int
    # Records before it are in the table.
    physical_offset: int
    # The next run's number.
    run: int = 0
    # Spark's schema of the table. From a folder without rows, Spark cannot infer it.
    schema: dict[str, Any] = field(default_factory=dict)
    # The mark of the store that was read up to there; None in a ledger of version 1.
    mark: dict[str, Any] | None = None
    version: int = _VERSION


class Ledger:
    """The transactions of one store, in a folder."""

    def __init__(self, spark: SparkSession, store: str, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._store = str(Path(store).resolve())
        # In this order, so that everything that a broker's progress has passed is before the end.
        self._half_progress = _native.log_half_progress(store)
        self.first: int
        self.visible: int
        self.first, self.visible = _native.log_range(store)
        self.last_run = LastRun.load(folder, self._store, LEDGER)
        self._state = self._load()

    @property
    def physical_offset(self) -> int:
        """The physical offset up to which the log is read."""
        return self._state.physical_offset

    @property
    def log_first(self) -> int:
        """The physical offset at which the log began at the first run."""
        return self._state.log_first

    def advance(self, until_ms: int | None = None, lookback_ms: int = LOOKBACK_MS) -> int:
        """Folds the log after the last run's end, up to records stored at `until_ms`; returns the bytes read.

        Raises InvalidOptionError if retention removed what was not read yet.
        """
        state = self._state
        end = self.visible if until_ms is None else min(self.visible, offset_at(self._store, until_ms))
        if end <= state.physical_offset and state.run > 0:
            return 0
        if state.physical_offset < self.first:
            raise InvalidOptionError(
                f"option incremental: the next offset to read is {state.physical_offset}, but retention removed the "
                f"log of {self._store} before {self.first}\nhint: begin with another folder, and run more often than "
                "the retention time",
                option="incremental",
            )
        schema = self._write(end, lookback_ms)
        mark = Mark.of(self._store, end).to_json()
        self._save(replace(state, physical_offset=end, run=state.run + 1, schema=schema.jsonValue(), mark=mark))
        self._drop_open(keep=state.run)
        return end - state.physical_offset

    def transactions(self) -> DataFrame:
        """Returns every transaction once."""
        return self._read(self._folder / _TABLE).drop("run", "open", "parts")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Returns every transaction once, read by the driver: the columns that the statistics need."""
        options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        files = sorted(str(file) for file in (self._folder / _TABLE).rglob("*.parquet"))
        if files:
            table = ds.dataset(files, format=ds.ParquetFileFormat(read_options=options))
            yield from table.to_batches(columns=COLUMNS)

    def _read(self, folder: Path) -> DataFrame:
        return self._spark.read.schema(StructType.fromJson(self._state.schema)).parquet(str(folder))

    def _write(self, end: int, lookback_ms: int) -> StructType:
        state = self._state
        traces = read_traces(
            self._spark, self._store, startingPhysicalOffset=state.physical_offset, endingPhysicalOffset=end
        )
        if state.run > 0:
            traces = traces.union(unfold(self._read(self._run(state.run - 1)).where("open")))
        # The progress does not apply to a part of the log.
        rows = fold(traces, state.log_first, self._half_progress if end == self.visible else 0)
        last_ms = last_store_ms(self._store, end) or 0
        is_open = F.expr(f"state <> '{HALF_MISSING}'") & (
            (F.col("state") == "pending") | (F.unix_millis(_newest()) > F.lit(last_ms - lookback_ms))
        )
        rows = rows.withColumn("open", is_open).withColumn("parts", F.when(F.col("open"), F.col("parts")))
        rows.write.partitionBy("open").mode("overwrite").parquet(str(self._run(state.run)))
        return rows.schema

    def _run(self, run: int) -> Path:
        return self._folder / _TABLE / f"run={run:05}"

    def _drop_open(self, keep: int) -> None:
        for folder in (self._folder / _TABLE).glob("run=*"):
            if folder.name < self._run(keep).name:
                shutil.rmtree(folder / "open=true", ignore_errors=True)
            elif folder.name > self._run(keep).name:
                shutil.rmtree(folder)

    def _load(self) -> _State:
        file = self._folder / _FILE
        if not file.exists():
            if self._folder.exists() and any(self._folder.iterdir()) and not (self._folder / _TABLE).exists():
                raise InvalidOptionError(
                    f"option output: {self._folder} contains other files\nhint: name an empty or a new folder",
                    option="output",
                )
            return _State(self._store, self.first, self.first)
        found = json.loads(file.read_text())
        if found.get("version") not in (_VERSION_WITHOUT_MARK, _VERSION):
            raise InvalidOptionError(
                f"option output: {file} is of version {found.get('version')}; this txstore reads versions "
                f"{_VERSION_WITHOUT_MARK} and {_VERSION}\nhint: name another folder",
                option="output",
            )
        state = replace(_State(**found), version=_VERSION)
        if state.store == self._store:
            self._check(state)
        if state.store != self._store or state.physical_offset > self.visible:
            raise InvalidOptionError(
                f"option output: {self._folder} reports on {state.store}, read up to {state.physical_offset}; "
                f"{self._store} ends at {self.visible}\nhint: name another folder",
                option="output",
            )
        self._state = state
        if state.run > 0:
            self._drop_open(keep=state.run - 1)
        return state

    def _check(self, state: _State) -> None:
        """Raises InvalidOptionError if the store at the path is not the one that was read."""
        if state.mark is not None:
            Mark.from_json(state.mark).check(self._store, self.first, state.physical_offset, _KEEPER)
        else:
            _log.warning(
                "%s comes from an older txstore: it does not say which store it belongs to; after this run it does",
                self._folder / _FILE,
            )

    def _save(self, state: _State) -> None:
        self._state = state
        new = self._folder / f"{_FILE}.tmp"
        with new.open("w") as file:
            json.dump(asdict(state), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / _FILE)


def _newest() -> Column:
    """Returns when the newest record of a transaction was stored, as far as its parts tell."""
    return F.expr("""greatest(
        array_max(transform(parts.copies, c -> c.store_timestamp)),
        array_max(transform(parts.finals, e -> e.store_timestamp)),
        array_max(transform(parts.discards, e -> e.store_timestamp)),
        array_max(flatten(transform(parts.copies, c -> transform(c.ops, o -> o.store_timestamp)))))""")
