"""The log as a Polars LazyFrame, and as a pyarrow Dataset for DuckDB: both read what a query needs.

`polars_frame` is the first, `predicate` what its filters restrict, `arrow_dataset` the second, `options` what both
take. None is imported before it is called, because each needs its package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from txstore.lazy.options import LazyOptions, checked

if TYPE_CHECKING:
    import polars
    import pyarrow.dataset

__all__ = ["LazyOptions", "dataset", "scan_polars"]


def scan_polars(path: str | os.PathLike[str], **options: Unpack[LazyOptions]) -> polars.LazyFrame:
    """Returns a store's commit log as a Polars LazyFrame.

    A query reads only the columns that it uses. A filter that compares `topic`, `physical_offset` or `store_timestamp`
    with a value, alone or joined by `&`, also restricts the part of the log that is read. Each query starts over and
    stops at the end that is visible then.

    Options are those of `txstore.scan`, except columns and batches; `threads` is by default the number of processors,
    at most 8. Needs Polars, not pyarrow.

    Raises as `txstore.scan` does. If a query fails, its error has the text of the engine's error.
    """
    from txstore.lazy.polars_frame import lazy_frame

    return lazy_frame(path, checked(options))


def dataset(path: str | os.PathLike[str], **options: Unpack[LazyOptions]) -> pyarrow.dataset.Dataset:
    """Returns a store's commit log as a pyarrow Dataset, for DuckDB and other readers of datasets.

    A query reads only the columns that it uses, and its filter is applied to each batch. To read only a part of the
    log, pass topics, offsets or times as options. Each query starts over and stops at the end that is visible then.

    Options are those of `txstore.scan`, except columns and batches; `threads` is by default the number of processors,
    at most 8. Needs pyarrow.

    Raises as `txstore.scan` does. If a query fails, its error has the text of the engine's error.
    """
    from txstore.lazy.arrow_dataset import LogDataset

    return LogDataset(path, checked(options))
