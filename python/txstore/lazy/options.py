"""Options of a lazy read: those of `txstore.scan` that choose rows, and how they are read.

In:     the caller's options.
Out:    options that can be used several times.
Not here: whether the store has what they name (`txstore.scan`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import Literal, TypedDict

from txstore.arrow import View

__all__ = ["LazyOptions", "checked"]

_THREADS_MAX = 8


class LazyOptions(TypedDict, total=False):
    """The options of `txstore.scan`, except columns and the sizes of batches."""

    view: View
    topics: Iterable[str] | None
    topic_pattern: str | None
    system_topics: bool
    transaction_types: Iterable[str] | None
    start_physical_offset: int | None
    end_physical_offset: int | None
    start_time: datetime | None
    end_time: datetime | None
    bad_records: Literal["fail", "skip"]
    fail_on_data_loss: bool
    statistics_path: str | os.PathLike[str] | None
    threads: int


def checked(options: LazyOptions) -> LazyOptions:
    """Returns the options with all processors as threads, unless a number is given."""
    kept = options.copy()
    # Iterators would be empty for the second query.
    if (topics := kept.get("topics")) is not None:
        kept["topics"] = list(topics)
    if (types := kept.get("transaction_types")) is not None:
        kept["transaction_types"] = list(types)
    kept.setdefault("threads", min(_THREADS_MAX, len(os.sched_getaffinity(0))))
    return kept
