"""Rows: the columns of a write, and their messages.

In:     Spark's schema, Arrow batches.
Out:    messages with the queue that a row asks for.
Always: a column that a write does not know is an error, so nothing is lost without notice.
Not here: sending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from txstore import Message
from txstore.errors import InvalidMessageError, InvalidNameError, InvalidOptionError

__all__ = ["COLUMNS", "RowMessage", "check_columns", "messages_of"]

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


class RowMessage(NamedTuple):
    """The message of a row."""

    message: Message
    queue_id: int | None
    """The queue that the row asks for."""


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


def messages_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[RowMessage]:
    """Yields the messages of a batch. Raises InvalidMessageError, which shows the row, for one that cannot be sent."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing = [None] * batch.num_rows
    rows = zip(*(columns.get(name, nothing) for name in COLUMNS), strict=True)
    for found in rows:
        yield _message(topic, *found)


def _message(
    default: str | None,
    topic: str | None,
    body: bytes | str | None,
    keys: list[str] | str | None,
    tags: str | None,
    properties: list[tuple[str, str]] | None,
    queue_id: int | None,
    message_group: str | None,
) -> RowMessage:
    named = default if topic is None else topic
    try:
        if named is None:
            raise InvalidMessageError("topic is null\nhint: filter such rows, or set the option topic")
        if body is None:
            raise InvalidMessageError("body is null\nhint: filter such rows")
        message = Message(
            named,
            body.encode() if isinstance(body, str) else body,
            tags=tags or None,
            keys=keys or None,
            properties=dict(properties) if properties else None,
            message_group=message_group or None,
        )
    except (InvalidMessageError, InvalidNameError) as error:
        shown: dict[str, Any] = {"topic": named, "keys": keys, "tags": tags, "queue_id": queue_id}
        raise InvalidMessageError(f"a row cannot be sent ({shown}): {error}") from error
    return RowMessage(message, queue_id)


def _invalid(what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option schema: {what}", option="schema")
