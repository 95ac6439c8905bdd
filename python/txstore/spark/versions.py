"""Versions: what Spark 4.0 and 4.1 do not have.

Out:    `LIMITS`, whether micro-batches can be limited; the types of these limits; `STREAM_WRITERS`, whether streams can
        be written; Spark's schemas in Arrow's types.
Always: with Spark 4.2 or newer, the types are Spark's own. Older versions never pass one, so any class will do.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this Spark passes limits to a stream of Python, and asks it how far the log reaches."""

STREAM_WRITERS = hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")
"""Whether this Spark writes a stream to a sink of Python in Arrow batches."""

if TYPE_CHECKING or LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit: ...

    class ReadAllAvailable(ReadLimit): ...

    class ReadMaxBytes(ReadLimit): ...

    class ReadMaxRows(ReadLimit): ...

    class ReadMinRows(ReadLimit): ...

    # These versions fix the end of such a query by themselves: they ask for the end only once.
    class SupportsTriggerAvailableNow: ...


__all__ = [
    "LIMITS",
    "SPARK_VERSION",
    "STREAM_WRITERS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_types",
]

SPARK_VERSION = pyspark.__version__
# Since Spark 4.2 the zone is an argument; before, it is UTC.
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_types(schema: StructType) -> pa.Schema:
    """Converts a schema as Spark does when it verifies what a source returns."""
    return to_arrow_schema(schema, **_ZONE)
