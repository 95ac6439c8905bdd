"""Polars: the log as a LazyFrame, whose queries read only the columns and the part of the log that they need.

In:     a store's directory, options; a query's columns, filter and number of rows.
Out:    frames, in the log's order.
Always: memory holds a few frames, unless the query collects them.
Not here: what a filter restricts (`predicate`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import polars as pl
from polars.io.plugins import register_io_source

from txstore.arrow import scan
from txstore.lazy.options import LazyOptions
from txstore.lazy.predicate import restricted

__all__ = ["lazy_frame"]

# Polars works on a frame with all its threads, so a frame is larger than a batch.
_FRAME_ROWS = 1 << 18


def lazy_frame(path: str | os.PathLike[str], options: LazyOptions) -> pl.LazyFrame:
    """Returns the LazyFrame."""
    schema = pl.Schema(scan(path, **options))

    def frames(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # A hint.
        shown = list(schema) if with_columns is None else with_columns
        tested = [] if predicate is None else predicate.meta.root_names()
        # If no column is shown, the number of rows counts.
        used = list(dict.fromkeys([*shown, *tested])) or [next(iter(schema))]
        left = n_rows
        chosen = restricted(path, options, predicate)
        if chosen is not None:
            for one in scan(path, columns=used, **chosen).frames(_FRAME_ROWS):
                frame = pl.DataFrame(one)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                yield (frame if predicate is None else frame.filter(predicate)).select(shown)
                if left == 0:
                    return

    return register_io_source(frames, schema=schema)
