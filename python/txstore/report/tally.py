"""Tally: counts of equal rows, added up batch by batch.

In:     columns.
Out:    a table with a row for each combination of keys.
Always: memory holds the combinations, and the sums of the last few batches.
Not here: what the columns mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Tally", "percentiles"]

# Sums of batches are joined when they have so many rows more than after the last join.
_UNJOINED_MAX = 100_000


class Tally:
    """Counts rows by keys; `n` is the count. `sums` says what to do with other columns: sum, min or max."""

    def __init__(self, keys: Sequence[str], sums: Mapping[str, str] | None = None) -> None:
        self._keys, self._sums = list(keys), dict(sums or {})
        self._parts: list[pa.Table] = []
        self._unjoined = 0

    def has_more_than(self, rows: int) -> bool:
        """Tells whether there are more combinations than that."""
        return bool(sum(part.num_rows for part in self._parts) > rows and self.table().num_rows > rows)

    def add(self, columns: Mapping[str, Any]) -> None:
        """Adds rows."""
        named = {name: columns[name] for name in [*self._keys, *self._sums]}
        counted = pa.table({**named, "n": pa.repeat(pa.scalar(1, pa.int64()), len(columns[self._keys[0]]))})
        part = self._grouped(counted)
        self._parts.append(part)
        self._unjoined += part.num_rows
        if self._unjoined > _UNJOINED_MAX:
            self.table()

    def change(self, key: str, new: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
        """Replaces the values of a key, and joins what has become equal."""
        table = self.table()
        self._parts = [self._grouped(table.set_column(table.column_names.index(key), key, new(table[key])))]

    def table(self) -> pa.Table:
        """Returns the keys, the sums and `n`."""
        if not self._parts:
            return pa.table({name: pa.array([], pa.int64()) for name in [*self._keys, *self._sums, "n"]})
        if len(self._parts) > 1:
            self._parts = [self._grouped(pa.concat_tables(self._parts))]
        self._unjoined = 0
        return self._parts[0]

    def _grouped(self, table: pa.Table) -> pa.Table:
        sums = {**self._sums, "n": "sum"}
        found = table.group_by(self._keys).aggregate(list(sums.items()))
        return pa.table(
            {
                **{key: found[key] for key in self._keys},
                **{name: found[f"{name}_{how}"] for name, how in sums.items()},
            }
        )


def percentiles(table: pa.Table, names: Sequence[str], shares: Sequence[float]) -> dict[str, tuple[int, ...]]:
    """Returns the values of `latency` below or at which each share of a name's rows is. Names without any are left
    out."""
    known = table.filter(pc.and_(pc.is_valid(table["latency"]), pc.is_in(table["name"], pa.array(names))))
    sums = (
        known.group_by(["name", "latency"])
        .aggregate([("n", "sum")])
        .sort_by([("name", "ascending"), ("latency", "ascending")])
    )
    found = {}
    for name, rows in groupby(sums.to_pylist(), key=lambda row: row["name"]):
        values = [(row["latency"], row["n_sum"]) for row in rows]
        whole = sum(count for _, count in values)
        reached, wanted, chosen = 0, list(shares), []
        for value, count in values:
            reached += count
            while wanted and reached >= math.ceil(wanted[0] * whole):
                chosen.append(value)
                wanted.pop(0)
        found[name] = tuple(chosen)
    return found
