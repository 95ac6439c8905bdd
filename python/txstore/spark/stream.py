"""Stream: the commit log as a streaming source.

In:     offsets that Spark keeps in its checkpoint.
Out:    the next offset, and ranges for tasks.
Always: an offset is one physical offset where a record begins, with the mark of the store that was read up to it,
        `{"v": 2, "phy": 1024, "store": …, "last": …}`. One number is enough, because the log is totally ordered. The
        rows between two offsets are the same whenever they are read.
Not here: rows (`ranges.py`), telling stores apart (`identity.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from txstore import _native
from txstore.errors import InvalidOptionError, OffsetTooOldError, StoreCorruptError
from txstore.spark.identity import Keeper, Mark
from txstore.spark.lag import StreamLag
from txstore.spark.options import LATEST, ReadOptions
from txstore.spark.ranges import LogRange, plan, read_range
from txstore.spark.schema import arrow_schema, warn_of_all_columns
from txstore.spark.versions import (
    LIMITS,
    SPARK_VERSION,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TxStoreStreamReader"]

_log = logging.getLogger("txstore.spark")

_VERSION = 2
_VERSION_WITHOUT_MARK = 1
_KEEPER = Keeper(
    "the checkpoint",
    "checkpointLocation",
    "use the path of the checkpoint's store, or start with a new checkpoint and output, which begin with this store",
)
Offset = dict[str, Any]


class TxStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over one store."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        # The end of the log at the last look, where the next look begins.
        self._known: int | None = None
        # The end of the log when the query began, under Trigger.AvailableNow.
        self._target: int | None = None
        # The offset made last, because most are asked for more than once.
        self._made: Offset | None = None
        # The last micro-batch that was planned, for the query's progress.
        self._batch: tuple[Offset, Offset] | None = None
        self._warned_of_version_1 = False
        if options.view == "transactions":
            raise InvalidOptionError(
                "option view: the view transactions needs the whole log\n"
                "hint: stream the views halves, ops and commitlog",
                option="view",
            )
        for option, value in (
            ("endingPhysicalOffset", options.end_physical_offset),
            ("endingTimestamp", options.end_store_ms),
        ):
            if value is not None:
                raise InvalidOptionError(f"option {option}: a stream has no end", option=option)
        if not LIMITS:
            _refuse_limits(options)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns where a new query begins. A restarted query continues from its checkpoint."""
        options = self._options
        warn_of_all_columns(options, self._schema)
        options.check_topics(_native.log_topics(options.path))
        first, visible = self._range()
        start = options.start_physical_offset
        if options.starting == LATEST:
            return self._offset(visible)
        if start is None:
            begin, _ = _native.log_time_range(options.path, first, visible, start_store_ms=options.start_store_ms)
            return self._offset(begin)
        if start > visible:
            raise InvalidOptionError(
                f"option startingPhysicalOffset: {start} is after the end of the log\n"
                f"hint: the log holds {first} to {visible}",
                option="startingPhysicalOffset",
            )
        return self._offset(_native.log_boundary(options.path, self._left(start, first)))

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Returns where the next micro-batch ends. Spark 4.0 and 4.1 pass no arguments: it ends at the log's end."""
        end = self._next(start, limit)
        self._batch = (end if start is None else start, end)
        return end

    def _next(self, start: Offset | None, limit: ReadLimit | None) -> Offset:
        first, visible = self._range()
        end = visible if self._target is None else self._target
        if start is None:
            return self._offset(end)
        self._check(start, first)
        begin = self._left(_physical(start), first)
        if begin > visible:
            raise self._shortened(visible, begin)
        if begin >= end:
            # Unchanged, because Spark would treat an offset with the same number and other facts as a new batch.
            return start if begin == _physical(start) else self._offset(begin)
        rows, most = self._limits(limit)
        if rows is None and most is None:
            return self._offset(end)
        scan = _native.Scan(self._options.path, columns=["physical_offset"], end=end, **self._options.arguments())
        return self._offset(scan.advance(begin, rows=rows, bytes=most))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit of a micro-batch from the options."""
        options = self._options
        if options.trigger_rows_max is not None:
            return ReadMaxRows(options.trigger_rows_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Returns where the log ends and how far the query is from it, for its progress."""
        latest = self._offset(self._range()[1])
        if self._batch is None:
            return latest
        start, end = self._batch
        lag = StreamLag.between(end, latest).to_json(_physical(end) - _physical(start))
        return {**latest, "lag": lag}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the log for this query."""
        self._target = self._range()[1]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Returns even ranges between records."""
        first = _native.log_first(self._options.path)
        # A query that was killed continues here, with offsets from its checkpoint.
        self._check(start, first)
        self._check(end, first)
        if _physical(start) > _physical(end):
            raise self._shortened(_physical(end), _physical(start))
        begin = self._left(_physical(start), first)
        return plan(self._options, self._schema, begin, max(begin, _physical(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a range."""
        assert isinstance(partition, LogRange)
        return read_range(self._options, self._schema, partition)

    def _range(self) -> tuple[int, int]:
        first, visible = _native.log_range(self._options.path, self._known)
        self._known = visible
        return first, visible

    def _offset(self, physical_offset: int) -> Offset:
        """Returns the offset, with the current mark of the store."""
        if self._made is None or _physical(self._made) != physical_offset:
            mark = Mark.of(self._options.path, physical_offset)
            self._made = {"v": _VERSION, "phy": physical_offset, **mark.to_json()}
        return self._made

    def _check(self, offset: Offset, first: int) -> None:
        """Raises InvalidOptionError if the offset comes from another store than the one at the path."""
        physical_offset, mark = _parse(offset)
        if mark is not None:
            mark.check(self._options.path, first, physical_offset, _KEEPER)
        elif not self._warned_of_version_1:
            self._warned_of_version_1 = True
            _log.warning(
                "the checkpoint comes from an older txstore: its offset %d does not say which store it belongs to; "
                "from the next batch on it does",
                physical_offset,
            )

    def _left(self, physical_offset: int, first: int) -> int:
        """Returns the offset, or the first remaining offset if retention removed it."""
        if physical_offset >= first:
            return physical_offset
        if self._options.fail_on_data_loss:
            raise OffsetTooOldError(
                f"retention removed offset {physical_offset} of the commit log before the stream read it\n"
                f"hint: the first offset left is {first}; failOnDataLoss=false continues there",
                minimum=first,
            )
        return first

    def _shortened(self, end: int, begin: int) -> StoreCorruptError:
        return StoreCorruptError(
            f"the log of {self._options.path} ends at {end}, before the stream's offset {begin}: it is another "
            "store, or lost power removed what was not flushed\nhint: start with a new checkpoint",
            file=self._options.path,
            offset=end,
        )

    def _limits(self, limit: ReadLimit | None) -> tuple[int | None, int | None]:
        """Returns the limits of a micro-batch in rows and bytes. Spark passes on only one of the two in the options."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.trigger_bytes_max
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None


def _refuse_limits(options: ReadOptions) -> None:
    for option, value in (
        ("maxOffsetsPerTrigger", options.trigger_rows_max),
        ("maxBytesPerTrigger", options.trigger_bytes_max),
    ):
        if value is not None:
            raise InvalidOptionError(
                f"option {option}: Spark {SPARK_VERSION} cannot limit a micro-batch of a Python source; "
                "Spark 4.2 is the first that can\nhint: omit it; a micro-batch then reads up to the end of the log",
                option=option,
            )


def _physical(offset: Offset) -> int:
    return _parse(offset)[0]


def _parse(offset: Offset) -> tuple[int, Mark | None]:
    """Returns the physical offset and the mark, None for version 1. Raises InvalidOptionError."""
    version, physical_offset = offset.get("v"), offset.get("phy")
    if isinstance(physical_offset, int):
        if version == _VERSION_WITHOUT_MARK:
            return physical_offset, None
        try:
            if version == _VERSION:
                return physical_offset, Mark.from_json(offset)
        except (KeyError, TypeError, ValueError):
            pass
    raise InvalidOptionError(
        f"option checkpointLocation: {offset!r} is not a valid offset; this version of txstore reads versions "
        f"{_VERSION_WITHOUT_MARK} and {_VERSION}\nhint: start with a new checkpoint",
        option="checkpointLocation",
    )
