"""Dataset: the log as a pyarrow Dataset, whose scanners read only what they show and test.

In:     a store's directory, options; the columns and the filter of a query.
Out:    a scanner.
Always: also reads the columns that the filter may use.
Not here: restricting the part of the log by a filter.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from txstore.arrow import scan
from txstore.lazy.options import LazyOptions

__all__ = ["LogDataset"]


class LogDataset(ds.Dataset):  # type: ignore[misc] # It comes without types.
    """A store's commit log. DuckDB and others call `scanner` with what a query needs."""

    def __init__(self, path: str | os.PathLike[str], options: LazyOptions) -> None:
        # The class of pyarrow wraps a dataset in C++, and refuses to be created without one.
        self._path, self._options = path, options
        self._schema = pa.schema(scan(path, **options))

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> ds.Scanner:  # noqa: A002
        """Returns a scanner of some columns, or of expressions by their names, and of the rows that match a filter."""
        used = self._used(columns, filter)
        reader = pa.RecordBatchReader.from_stream(scan(self._path, columns=used, **self._options))
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter, **options)

    def _used(self, columns: Any, filter: Any) -> list[str]:  # noqa: A002
        """Returns the columns that a scanner reads, in the log's order."""
        if columns is None:
            return list(self._schema.names)
        expressions = columns.values() if isinstance(columns, dict) else []
        named = set(columns) if not isinstance(columns, dict) else set()
        # An expression does not tell its columns, but its text has their names.
        text = " ".join(map(str, [*expressions, *([] if filter is None else [filter])]))
        named |= set(re.findall(r"\w+", text))
        # If no column is shown, the number of rows counts.
        return [name for name in self._schema.names if name in named] or [self._schema.names[0]]

    def __reduce__(self) -> tuple[Any, ...]:
        return LogDataset, (self._path, self._options)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            "a txstore dataset has no fragments\n"
            "hint: call to_table(), to_batches() or scanner(), or read it with DuckDB"
        )

    # They would use the C++ object that this one does not have.
    get_fragments = _get_fragments = replace_schema = filter = sort_by = join = join_asof = _refused
    partition_expression = property(_refused)
