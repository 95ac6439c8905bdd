"""Stream: the commit log as a streaming source.

In: offsets that Spark keeps in its checkpoint. Out: the next offset, and ranges for tasks. Always: an offset is one
place of the log where a record begins, `{"v": 1, "phy": 1024}`: log order is total, so it says all; rows between two
offsets are the same whenever they are read. Not here: rows (`datasource.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from txstore import _native
from txstore.errors import InvalidOptionError, OffsetTooOldError, StoreCorruptError
from txstore.spark.datasource import LogRange, plan, read_range
from txstore.spark.options import LATEST, ReadOptions
from txstore.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TxStoreStreamReader"]

_VERSION = 1
Offset = dict[str, int]


class TxStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over one store."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        # Where the last look found the log's end: the next look begins there.
        self._known: int | None = None
        # Under Trigger.AvailableNow: the end of the log when the query began.
        self._target: int | None = None
        if options.view == "transactions":
            raise InvalidOptionError(
                "option view: transactions are folded from the whole log\n"
                "hint: stream the views halves, ops and commitlog",
                option="view",
            )
        for option, value in (
            ("endingPhysicalOffset", options.end_physical_offset),
            ("endingTimestamp", options.end_store_ms),
        ):
            if value is not None:
                raise InvalidOptionError(f"option {option}: a stream has no end", option=option)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins; an old one goes on where its checkpoint says."""
        options = self._options
        options.check_topics(_native.log_topics(options.path))
        first, visible = self._range()
        start = options.start_physical_offset
        if options.starting == LATEST:
            return _offset(visible)
        if start is None:
            return _offset(first)
        if start > visible:
            raise InvalidOptionError(
                f"option startingPhysicalOffset: {start} is behind the end of the log\n"
                f"hint: it holds {first} to {visible}",
                option="startingPhysicalOffset",
            )
        return _offset(_native.log_boundary(options.path, self._left(start, first)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Where the next micro-batch ends."""
        first, visible = self._range()
        end = visible if self._target is None else self._target
        begin = self._left(_place(start), first)
        if begin > visible:
            raise StoreCorruptError(
                f"the log of {self._options.path} ends at {visible}, in front of the stream's offset {begin}: it is "
                "another store, or lost power took back what was not flushed\nhint: start with a new checkpoint",
                file=self._options.path,
                offset=visible,
            )
        if begin >= end:
            return _offset(begin)
        rows, most = self._limits(limit)
        if rows is None and most is None:
            return _offset(end)
        scan = _native.Scan(self._options.path, columns=["physical_offset"], end=end, **self._options.arguments())
        return _offset(scan.advance(begin, rows=rows, bytes=most))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the options admit to a micro-batch."""
        options = self._options
        if options.trigger_rows_max is not None:
            return ReadMaxRows(options.trigger_rows_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where the log ends, for the query's progress."""
        return _offset(self._range()[1])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on the log ends here."""
        self._target = self._range()[1]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Even ranges between records."""
        first, _ = _native.log_range(self._options.path, _place(end))
        begin = self._left(_place(start), first)
        return plan(self._options, self._schema, begin, max(begin, _place(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a range."""
        assert isinstance(partition, LogRange)
        return read_range(self._options, self._schema, partition)

    def _range(self) -> tuple[int, int]:
        first, visible = _native.log_range(self._options.path, self._known)
        self._known = visible
        return first, visible

    def _left(self, place: int, first: int) -> int:
        """The place, or the first one that is left where retention removed it."""
        if place >= first:
            return place
        if self._options.fail_on_data_loss:
            raise OffsetTooOldError(
                f"offset {place} of the commit log is gone: retention removed it before the stream read it\n"
                f"hint: the first one left is {first}; failOnDataLoss=false goes on there",
                minimum=first,
            )
        return first

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Rows and bytes that a micro-batch may have. Spark passes on only one of the two that options may give."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.trigger_bytes_max
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None


def _offset(place: int) -> Offset:
    return {"v": _VERSION, "phy": place}


def _place(offset: Offset) -> int:
    if offset.get("v") != _VERSION or not isinstance(offset.get("phy"), int):
        raise InvalidOptionError(
            f"option checkpointLocation: {offset!r} is no offset of this version of txstore\n"
            "hint: start with a new checkpoint",
            option="checkpointLocation",
        )
    return offset["phy"]
