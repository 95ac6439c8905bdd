"""Time search: finds where in a log a time begins.

In:     a store's directory, a time.
Out:    the physical offset of the first record stored then or later.
Always: reads a few dozen records, whatever the log's size, because store timestamps never decrease.
Not here: rows.
"""

from __future__ import annotations

import pyarrow as pa

from txstore import _native

__all__ = ["last_store_ms", "offset_at"]


def offset_at(path: str, store_ms: int) -> int:
    """Returns the first record stored at that time (epoch ms) or later; the visible end if there is none."""
    low, high = _native.log_range(path)
    end = high
    while low < high:
        middle = low + (high - low) // 2
        at = _native.log_boundary(path, middle)
        found = _first(path, at, end)
        if at >= high or found is None:
            # No record begins in the upper half, so only those of the lower half are left.
            high = middle
        elif found >= store_ms:
            high = middle
        else:
            low = at + 1
    return _native.log_boundary(path, low)


def last_store_ms(path: str, end: int) -> int | None:
    """Returns when the last record before `end` was stored, in ms; None in an empty log."""
    last = _native.log_last_record(path, end)
    return None if last is None else last.store_timestamp_ms


def _first(path: str, at: int, end: int) -> int | None:
    if at >= end:
        return None
    scan = _native.Scan(path, view="commitlog", columns=["store_timestamp"], start=at, end=end, batch_rows=1)
    with pa.RecordBatchReader.from_stream(scan) as batches:
        for batch in batches:
            if batch.num_rows:
                return int(batch["store_timestamp"][0].value) // 1_000
    return None
