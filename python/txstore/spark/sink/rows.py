"""Rows: the columns of a write.

In:     Spark's schema, Arrow batches.
Out:    rows that the engine encodes.
Always: a column that a write does not know is an error, so nothing is lost without notice. No object is made per row.
Not here: encoding (the engine's `SinkRows`), sending (`target.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyarrow import compute
from pyspark.sql.types import StructType

from txstore._native import SinkRows
from txstore.errors import InvalidOptionError

__all__ = ["COLUMNS", "check_columns", "rows_of"]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "keys": ("array<string>", "string"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "queue_id": ("int", "bigint"),
    "message_group": ("string",),
}
"""The columns of a write, and the types that each may have."""


# A map's names are not null; as a list it can be flattened.
_PAIRS = pa.list_(pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]))


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises InvalidOptionError for columns that a write does not know, or that are missing. `topic` is the option."""
    for field in schema.fields:
        types = COLUMNS.get(field.name)
        if types is None:
            raise _invalid(f"a write has no column {field.name!r}\nhint: select only {', '.join(COLUMNS)}")
        given = field.dataType.simpleString()
        if given not in types:
            raise _invalid(f"column {field.name} must be {' or '.join(types)}, got {given}\nhint: cast it")
    names = schema.fieldNames()
    if "body" not in names:
        raise _invalid("the column body is missing\nhint: for example select(to_json(struct('*')).alias('body'))")
    if "topic" not in names and topic is None:
        raise _invalid("the column topic is missing\nhint: the option topic is that of all rows")


def rows_of(batches: Iterable[pa.RecordBatch], topic: str | None, rows_min: int) -> Iterator[SinkRows]:
    """Yields the rows of batches, at least `rows_min` at a time while there are more. `topic`: of rows without one."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= rows_min:
            yield _sink_rows(waiting, topic)
            waiting, rows = [], 0
    if rows > 0:
        yield _sink_rows(waiting, topic)


def _sink_rows(batches: list[pa.RecordBatch], topic: str | None) -> SinkRows:
    table = pa.Table.from_batches(batches).combine_chunks()
    return SinkRows({name: _flat(name, table.column(name).chunk(0)) for name in table.column_names}, topic)


def _flat(name: str, array: pa.Array) -> list[pa.Array]:
    """Returns a column as arrays without children: its values, or the lengths of its lists, and then their values."""
    if name == "queue_id":
        return [array.cast(pa.int64())]
    if pa.types.is_map(array.type):
        pairs = array.cast(_PAIRS)
        return [compute.list_value_length(pairs), *pairs.flatten().flatten()]
    if pa.types.is_list(array.type):
        return [compute.list_value_length(array), array.flatten().cast(pa.binary())]
    return [array.cast(pa.binary())]


def _invalid(what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option schema: {what}", option="schema")
