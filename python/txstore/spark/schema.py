"""Schema: the columns of a read in Spark's types, converted from Arrow's.

In:     options, and possibly a schema from the user.
Out:    columns, and Spark's schema of them.
Always: the columns are defined once, in the engine.
"""

from __future__ import annotations

import logging

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from txstore import _native
from txstore.errors import InvalidOptionError
from txstore.spark.options import BROKER_COLUMN, STORE_COLUMN, ReadOptions
from txstore.spark.versions import arrow_types

__all__ = ["OF_SOURCE", "arrow_schema", "columns_of", "spark_schema", "warn_of_all_columns", "with_source"]

OF_SOURCE = frozenset((STORE_COLUMN, BROKER_COLUMN))
"""The columns that say where a row comes from. The engine does not have them."""

_log = logging.getLogger("txstore.spark")
_LEFT_OUT = (("body", "include_body"), ("properties", "include_properties"))


def columns_of(options: ReadOptions) -> list[str]:
    """Returns the columns that the options choose. Several stores are told apart by the column `store`, and brokers by
    the column `broker`."""
    if options.columns is not None:
        return list(options.columns)
    left_out = {name for name, flag in _LEFT_OUT if not getattr(options, flag)}
    of_view = [name for name in _native.Scan(options.path, view=options.view).columns if name not in left_out]
    of_source = [BROKER_COLUMN] if options.brokers is not None else [STORE_COLUMN] if options.paths else []
    return [*of_view, *of_source]


def spark_schema(options: ReadOptions) -> StructType:
    """Returns Spark's schema of the columns that the options choose."""
    names = columns_of(options)
    # The engine checks the names.
    of_view = [name for name in names if name not in OF_SOURCE] or ["size"]
    found = _with_source(options, pa.schema(_native.Scan(options.path, view=options.view, columns=of_view)))
    return StructType([found[name] for name in names])


def arrow_schema(options: ReadOptions, wanted: StructType) -> pa.Schema:
    """Converts the schema that Spark asks for to Arrow, and refuses columns that the view does not have.

    A schema from the user chooses columns: their names and types must be those of the view, but nulls may be excluded.
    """
    every = _with_source(options, pa.schema(_native.Scan(options.path, **options.arguments())))
    for field in wanted.fields:
        if field.name not in every.names:
            raise InvalidOptionError(
                f"option schema: the view {options.view!r} has no column {field.name!r}\n"
                f"hint: it has {', '.join(every.names)}",
                option="schema",
            )
        ours = every[field.name].dataType
        if field.dataType.simpleString() != ours.simpleString():
            raise InvalidOptionError(
                f"option schema: {field.name} is {ours.simpleString()}, not {field.dataType.simpleString()}\n"
                "hint: read it as it is and cast it in Spark",
                option="schema",
            )
    return arrow_types(wanted)


def with_source(batch: pa.RecordBatch, schema: pa.Schema, store: str | None, broker: str | None) -> pa.RecordBatch:
    """Returns a batch in Spark's schema, with the columns that say where its rows come from."""
    if not OF_SOURCE.isdisjoint(schema.names):
        known = {STORE_COLUMN: store, BROKER_COLUMN: broker}
        columns = [
            _repeated(known[name], batch.num_rows) if name in known else batch.column(name) for name in schema.names
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
    return batch if batch.schema.equals(schema) else batch.cast(schema)


def _repeated(text: str | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.string()) if text is None else pa.repeat(text, rows)


def _with_source(options: ReadOptions, of_view: pa.Schema) -> StructType:
    """Adds the columns that say where a row comes from. Files do not know a broker's name, nor brokers a path."""
    is_remote = options.brokers is not None
    found = from_arrow_schema(of_view).add(STORE_COLUMN, StringType(), nullable=is_remote)
    return found.add(BROKER_COLUMN, StringType(), nullable=not is_remote)


def warn_of_all_columns(options: ReadOptions, schema: pa.Schema) -> None:
    """Logs a warning if a plan moves all columns with the bodies, and no option and no schema chose them."""
    if options.chose_columns or "body" not in schema.names or schema.names != columns_of(options):
        return
    _log.warning(
        "%s: this query reads all %d columns with every body, whatever it selects later: Spark passes neither "
        "columns nor filters to a Python source\n"
        'hint: option("columns", "topic,size") names the columns that it needs; option("columns", "*") means all '
        "of them, without this warning",
        options.brokers or options.path, len(schema.names),
    )  # fmt: skip
