"""Stream: the commit logs of one or several stores as a streaming source.

In:     offsets that Spark keeps in its checkpoint.
Out:    the next offset, and ranges for tasks.
Always: the offset of one store is that of its `StoreStream`; that of several has theirs by path,
        `{"v": 3, "stores": {"/data/orders.store": {…}, …}}`.
Not here: what one store contributes (`store_stream.py`), rows (`ranges.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from txstore.errors import InvalidOptionError
from txstore.spark.lag import StreamLag, position
from txstore.spark.options import ReadOptions
from txstore.spark.ranges import LogRange, read_range
from txstore.spark.schema import arrow_schema, warn_of_all_columns
from txstore.spark.store_stream import Offset, StoreStream, invalid_offset
from txstore.spark.triggers import check_stream, default_limit
from txstore.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TxStoreStreamReader"]

_VERSION_OF_SEVERAL = 3


class TxStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over one or several stores."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        self._stores = [StoreStream(one, self._schema) for one in options.each()]
        # The last micro-batch that was planned, for the query's progress.
        self._batch: tuple[Offset, Offset] | None = None
        # When the last micro-batch was triggered, by the monotonic clock.
        self._triggered: float | None = None
        self._is_available_now = False
        check_stream(options)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns where a new query begins. A restarted query continues from its checkpoint."""
        warn_of_all_columns(self._options, self._schema)
        self._options.check_topics()
        return self._joined([store.initial() for store in self._stores])

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Returns where the next micro-batch ends. Spark 4.0 and 4.1 pass no arguments: it ends at the log's end."""
        end = self._next(start, limit)
        self._batch = (end if start is None else start, end)
        return end

    def _next(self, start: Offset | None, limit: ReadLimit | None) -> Offset:
        if start is None:
            return self._joined([store.next(None, None, None) for store in self._stores])
        starts = self._split(start)
        if self._waits(starts, limit):
            return start
        rows, most = self._limits(limit)
        ready = sum(store.has_more(one) for store, one in zip(self._stores, starts, strict=True)) or 1
        rows, most = (None if given is None else max(1, given // ready) for given in (rows, most))
        ends = [store.next(one, rows, most) for store, one in zip(self._stores, starts, strict=True)]
        # Unchanged, because Spark would treat an offset with the same numbers and other facts as a new batch.
        return start if ends == starts else self._joined(ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit of a micro-batch from the options. Of several, Spark passes on one."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns where the log ends and how far the query is from it, for its progress."""
        latest = self._joined([store.latest() for store in self._stores])
        if self._batch is None:
            return latest
        start, end = self._batch
        lag = StreamLag.between(end, latest).to_json(position(end) - position(start))
        return {**latest, "lag": lag}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the log for this query."""
        self._is_available_now = True
        for store in self._stores:
            store.fix_end()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Returns even ranges between records."""
        parts = zip(self._stores, self._split(start), self._split(end), strict=True)
        return [part for store, begin, until in parts for part in store.plan(begin, until)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a range."""
        assert isinstance(partition, LogRange)
        return read_range(self._options, self._schema, partition)

    def _joined(self, offsets: Sequence[Offset]) -> Offset:
        if not self._options.paths:
            return offsets[0]
        by_path = {store.path: offset for store, offset in zip(self._stores, offsets, strict=True)}
        return {"v": _VERSION_OF_SEVERAL, "stores": by_path}

    def _split(self, offset: Offset) -> list[Offset]:
        """Returns the offset of each store. Raises InvalidOptionError if it is one of other stores."""
        if not self._options.paths and "stores" not in offset:
            return [offset]
        found = offset.get("stores", {})
        if not isinstance(found, dict) or (found and offset.get("v") != _VERSION_OF_SEVERAL):
            raise invalid_offset(offset)
        paths = [store.path for store in self._stores]
        if sorted(found) != sorted(paths):
            was = ", ".join(sorted(found)) or "one store"
            raise InvalidOptionError(
                f"option checkpointLocation: the checkpoint is one of {was}; the query reads {', '.join(paths)}\n"
                "hint: read the same stores, or start with a new checkpoint and output",
                option="checkpointLocation",
            )
        return [found[path] for path in paths]

    def _waits(self, starts: Sequence[Offset], limit: ReadLimit | None) -> bool:
        """Returns whether a micro-batch waits for more rows, as `minOffsetsPerTrigger` and `maxTriggerDelay` say."""
        least = self._options.trigger_rows_min
        # With these triggers there is no later micro-batch that could have the rows.
        if least is None or self._is_available_now or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        is_late = self._triggered is None or (now - self._triggered) * 1000 >= self._options.trigger_delay_ms
        rows = 0
        for store, start in zip(self._stores, starts, strict=True):
            rows += store.rows_after(start, (1 if is_late else least) - rows) if rows < least else 0
        if rows < (1 if is_late else least):
            return True
        self._triggered = now
        return False

    def _limits(self, limit: ReadLimit | None) -> tuple[int | None, int | None]:
        """Returns the limits of a micro-batch in rows and bytes. Spark passes on only one of those in the options."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.trigger_bytes_max
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None
