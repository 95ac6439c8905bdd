"""Stream: the commit log as a streaming source.

In: offsets that Spark keeps in its checkpoint. Out: the next offset, and ranges for tasks. Always: an offset is one
physical offset where a record begins, and the mark of the store that was read up to it, `{"v": 2, "phy": 1024,
"store": …, "last": …}`: log order is total, so one number says all; rows between two offsets are the same whenever
they are read. Not here: rows (`datasource.py`), when a store is another one (`identity.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
from txstore.spark.identity import Keeper, Mark
from txstore.spark.options import LATEST, ReadOptions
from txstore.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TxStoreStreamReader"]

_log = logging.getLogger("txstore.spark")

_VERSION = 2
_VERSION_WITHOUT_MARK = 1
_KEEPER = Keeper(
    "the checkpoint",
    "checkpointLocation",
    "give the path of the checkpoint's store, or start with a new checkpoint and output, which begin with this store",
)
Offset = dict[str, Any]


class TxStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over one store."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(options, schema)
        # Where the last look found the log's end: the next look begins there.
        self._known: int | None = None
        # Under Trigger.AvailableNow: the end of the log when the query began.
        self._target: int | None = None
        # The offset that was made last: most are asked for more than once.
        self._made: Offset | None = None
        self._told_of_version_1 = False
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
            return self._offset(visible)
        if start is None:
            return self._offset(first)
        if start > visible:
            raise InvalidOptionError(
                f"option startingPhysicalOffset: {start} is behind the end of the log\n"
                f"hint: it holds {first} to {visible}",
                option="startingPhysicalOffset",
            )
        return self._offset(_native.log_boundary(options.path, self._left(start, first)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Where the next micro-batch ends."""
        first, visible = self._range()
        end = visible if self._target is None else self._target
        self._check(start, first)
        begin = self._left(_physical(start), first)
        if begin > visible:
            raise StoreCorruptError(
                f"the log of {self._options.path} ends at {visible}, in front of the stream's offset {begin}: it is "
                "another store, or lost power took back what was not flushed\nhint: start with a new checkpoint",
                file=self._options.path,
                offset=visible,
            )
        if begin >= end:
            # As it is: an offset of the same number that says more would be a batch of its own to Spark.
            return start if begin == _physical(start) else self._offset(begin)
        rows, most = self._limits(limit)
        if rows is None and most is None:
            return self._offset(end)
        scan = _native.Scan(self._options.path, columns=["physical_offset"], end=end, **self._options.arguments())
        return self._offset(scan.advance(begin, rows=rows, bytes=most))

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
        return self._offset(self._range()[1])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on the log ends here."""
        self._target = self._range()[1]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Even ranges between records."""
        first, _ = _native.log_range(self._options.path, _physical(end))
        # A query that was killed goes on here, with offsets from its checkpoint.
        self._check(start, first)
        self._check(end, first)
        begin = self._left(_physical(start), first)
        return plan(self._options, self._schema, begin, max(begin, _physical(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a range."""
        assert isinstance(partition, LogRange)
        return read_range(self._options, self._schema, partition)

    def _range(self) -> tuple[int, int]:
        first, visible = _native.log_range(self._options.path, self._known)
        self._known = visible
        return first, visible

    def _offset(self, physical_offset: int) -> Offset:
        """The offset, with the mark of the store as it is now."""
        if self._made is None or _physical(self._made) != physical_offset:
            mark = Mark.of(self._options.path, physical_offset)
            self._made = {"v": _VERSION, "phy": physical_offset, **mark.to_json()}
        return self._made

    def _check(self, offset: Offset, first: int) -> None:
        """Raises InvalidOptionError if the offset was made from another store than the one at the path."""
        physical_offset, mark = _parse(offset)
        if mark is not None:
            mark.check(self._options.path, first, physical_offset, _KEEPER)
        elif not self._told_of_version_1:
            self._told_of_version_1 = True
            _log.warning(
                "the checkpoint is of an older txstore: its offset %d does not say which store it belongs to; "
                "from the next batch on it does",
                physical_offset,
            )

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


def _physical(offset: Offset) -> int:
    return _parse(offset)[0]


def _parse(offset: Offset) -> tuple[int, Mark | None]:
    """The physical offset, and the mark; None in an offset of version 1. Raises InvalidOptionError."""
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
        f"option checkpointLocation: {offset!r} is not an offset of this version of txstore, which reads versions "
        f"{_VERSION_WITHOUT_MARK} and {_VERSION}\nhint: start with a new checkpoint",
        option="checkpointLocation",
    )
