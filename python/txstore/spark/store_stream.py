"""Store stream: what a stream reads of one of its stores.

In:     offsets of that store, from the checkpoint.
Out:    the next offset, and ranges for tasks.
Always: an offset is one physical offset where a record begins, with the mark of the store that was read up to it,
        `{"v": 2, "phy": 1024, "store": …, "last": …}`. One number is enough, because the log is totally ordered. The
        rows between two offsets are the same whenever they are read: where single queues began is in the offset, too,
        as `"queues": {"orders": {"0": 23}}`.
Not here: limits and several stores (`stream.py`), rows (`ranges.py`), telling stores apart (`identity.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from txstore import _native
from txstore.errors import InvalidOptionError, OffsetTooOldError, StoreCorruptError
from txstore.spark.identity import Keeper, Mark
from txstore.spark.offsets import LATEST, Queues, Starts, starts_of
from txstore.spark.options import ReadOptions
from txstore.spark.ranges import LogRange, plan

__all__ = ["Offset", "StoreStream", "invalid_offset"]

_log = logging.getLogger("txstore.spark")

_VERSION = 2
_VERSION_WITHOUT_MARK = 1
_KEEPER = Keeper(
    "the checkpoint",
    "checkpointLocation",
    "use the path of the checkpoint's store, or start with a new checkpoint and output, which begin with this store",
)
Offset = dict[str, Any]


class StoreStream:
    """One store of a stream."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        # The end of the log at the last look, where the next look begins.
        self._known: int | None = None
        # The end of the log when the query began, under Trigger.AvailableNow.
        self._target: int | None = None
        # The offset made last, because most are asked for more than once.
        self._made: Offset | None = None
        # How many rows were counted in a range, because a stream that waits for more asks often.
        self._counted: tuple[tuple[int, int, int], int] | None = None
        self._warned_of_version_1 = False

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._options.path

    def initial(self) -> Offset:
        """Returns where a new query begins."""
        options, limits = self._options, self._options.limits
        first, visible = self._range()
        start = options.start_physical_offset
        if options.starting == LATEST:
            return self._offset(visible, {})
        if start is None:
            begin, _ = _native.log_time_range(options.path, first, visible, start_store_ms=options.start_store_ms)
            starts = limits.starts(options.path, options.fail_on_data_loss)
            begin, _ = limits.span(options.path, self._queues(starts), begin, visible)
            return self._offset(begin, starts)
        if start > visible:
            raise InvalidOptionError(
                f"option startingPhysicalOffset: {start} is after the end of the log\n"
                f"hint: the log holds {first} to {visible}",
                option="startingPhysicalOffset",
            )
        return self._offset(_native.log_boundary(options.path, self._left(start, first)), {})

    def next(self, start: Offset | None, rows: int | None, most: int | None) -> Offset:
        """Returns where a micro-batch from `start` ends that has at most so many rows and about so many bytes.

        None: Spark 4.0 and 4.1 do not say where it starts.
        """
        first, visible = self._range()
        end = self._end(visible)
        if start is None:
            return self._offset(end, {})
        self._check(start, first)
        begin, starts = self._left(_physical(start), first), self._starts(start)
        if begin > visible:
            raise self._shortened(visible, begin)
        if begin >= end:
            # Unchanged, because Spark would treat an offset with the same number and other facts as a new batch.
            return start if begin == _physical(start) else self._offset(begin, starts)
        if rows is not None or most is not None:
            end = self._scan(starts, end).advance(begin, rows=rows, bytes=most)
        return self._offset(end, starts)

    def rows_after(self, start: Offset, most: int) -> int:
        """Returns how many rows a micro-batch from `start` can have now, at most `most`."""
        first, visible = self._range()
        asked = max(_physical(start), first), self._end(visible), most
        if self._counted is None or self._counted[0] != asked:
            begin, end, _ = asked
            found = self._scan(self._starts(start), end).count(begin, end, most=most) if begin < end else 0
            self._counted = asked, found
        return self._counted[1]

    def has_more(self, start: Offset) -> bool:
        """Returns whether the log has more than was read."""
        return _physical(start) < self._end(self._range()[1])

    def latest(self) -> Offset:
        """Returns where the log ends."""
        return self._offset(self._range()[1], {})

    def fix_end(self) -> None:
        """Fixes the end of the log for this query."""
        self._target = self._range()[1]

    def plan(self, start: Offset, end: Offset) -> Sequence[LogRange]:
        """Returns even ranges between records."""
        first = _native.log_first(self.path)
        # A query that was killed continues here, with offsets from its checkpoint.
        self._check(start, first)
        self._check(end, first)
        if _physical(start) > _physical(end):
            raise self._shortened(_physical(end), _physical(start))
        begin = self._left(_physical(start), first)
        queues = self._queues(self._starts(end))
        return plan(self._options, self._schema, begin, max(begin, _physical(end)), queues)

    def _scan(self, starts: Starts, end: int) -> _native.Scan:
        arguments = self._options.arguments(self._queues(starts))
        return _native.Scan(self.path, columns=["physical_offset"], end=end, **arguments)

    def _range(self) -> tuple[int, int]:
        first, visible = _native.log_range(self.path, self._known)
        self._known = visible
        return first, visible

    def _end(self, visible: int) -> int:
        return visible if self._target is None else self._target

    def _queues(self, starts: Starts) -> Queues | None:
        return self._options.limits.queues(self.path, starts, self._options.fail_on_data_loss)

    def _starts(self, offset: Offset) -> Starts:
        """Returns where single queues began. Offsets of older versions do not say it: there, the options do."""
        found = offset.get("queues")
        if found is None:
            return self._options.limits.fixed_starts()
        try:
            return starts_of(found)
        except (AttributeError, TypeError, ValueError):
            raise invalid_offset(offset) from None

    def _offset(self, physical_offset: int, starts: Starts) -> Offset:
        """Returns the offset, with the current mark of the store."""
        began = {"queues": {topic: {str(queue): at for queue, at in of.items()} for topic, of in starts.items()}}
        if self._made is None or _physical(self._made) != physical_offset:
            mark = Mark.of(self.path, physical_offset)
            self._made = {"v": _VERSION, "phy": physical_offset, **mark.to_json()}
        return self._made | began if starts else self._made

    def _check(self, offset: Offset, first: int) -> None:
        """Raises InvalidOptionError if the offset comes from another store than the one at the path."""
        physical_offset, mark = _parse(offset)
        if mark is not None:
            mark.check(self.path, first, physical_offset, _KEEPER)
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
            f"the log of {self.path} ends at {end}, before the stream's offset {begin}: it is another "
            "store, or lost power removed what was not flushed\nhint: start with a new checkpoint",
            file=self.path,
            offset=end,
        )


def invalid_offset(offset: Offset) -> InvalidOptionError:
    """Returns the error for an offset that this version of txstore did not write."""
    return InvalidOptionError(
        f"option checkpointLocation: {offset!r} is not a valid offset; this version of txstore reads versions "
        f"{_VERSION_WITHOUT_MARK} and {_VERSION}\nhint: start with a new checkpoint",
        option="checkpointLocation",
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
    raise invalid_offset(offset)
