"""Predicate: what a filter of Polars restricts, so that the rest of the log is not read.

In:     an expression, options.
Out:    options that leave out only rows that the expression would leave out.
Always: what is not understood restricts nothing. Polars' text form of expressions is not stable, so any surprise in it
        means the same.
Not here: testing rows.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import polars as pl

from txstore import _native
from txstore.lazy.options import LazyOptions

__all__ = ["restricted"]

# A value on the left side turns the comparison around.
_TURNED = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_PER_MS = {"Milliseconds": 1, "Microseconds": 1_000, "Nanoseconds": 1_000_000}
# Views whose rows have topics.
_WITH_TOPICS = ("messages", "commitlog")
# Views that are computed from the whole log.
_WHOLE = ("transactions", "statistics")


def restricted(path: str | os.PathLike[str], options: LazyOptions, predicate: pl.Expr | None) -> LazyOptions | None:
    """Returns options for the rows that a predicate may choose; None if there are none."""
    if predicate is None or options.get("view") in _WHOLE:
        return options
    found = options.copy()
    try:
        conditions = list(_conditions(json.loads(predicate.meta.serialize(format="json"))))
    except (AttributeError, TypeError, ValueError, KeyError, pl.exceptions.PolarsError):
        return options
    for column, operator, value in conditions:
        match column, operator, value:
            case "topic", "Eq" | "IsIn", list():
                _restrict_topics(path, found, value)
            case "physical_offset", _, int():
                _restrict_offsets(found, operator, value)
            case "store_timestamp", _, int():
                _restrict_times(found, operator, value)
    return None if found.get("topics") == [] or _is_empty(path, options, found) else found


def _conditions(tree: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields comparisons of a column with a value that all must hold."""
    if (binary := tree.get("BinaryExpr")) is not None:
        left, operator, right = binary["left"], binary["op"], binary["right"]
        if operator in ("And", "LogicalAnd"):
            yield from _conditions(left)
            yield from _conditions(right)
        elif operator in _TURNED and "Column" in left:
            yield left["Column"], operator, _value(right)
        elif operator in _TURNED and "Column" in right:
            yield right["Column"], _TURNED[operator], _value(left)
    elif (function := tree.get("Function")) is not None and "Column" in function["input"][0]:
        column, values = function["input"][0]["Column"], function["input"][1:]
        kind = function["function"].get("Boolean")
        if isinstance(kind, dict) and "IsIn" in kind:
            chosen = pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(values[0])), format="json"))
            yield column, "IsIn", chosen.to_series().explode().to_list()
        elif isinstance(kind, dict) and "IsBetween" in kind:
            # Rows at an end that is excluded are tested anyway.
            yield column, "GtEq", _value(values[0])
            yield column, "LtEq", _value(values[1])


def _value(tree: dict[str, Any]) -> int | list[str] | None:
    """Returns a literal: an integer, a time in ns since the epoch, a text as a list of one; otherwise None."""
    scalar: dict[str, Any] = tree.get("Literal", {}).get("Scalar") or {"": None}
    kind, value = next(iter(scalar.items()))
    if kind in _INTEGERS:
        return int(value)
    if kind == "String":
        return [str(value)]
    if kind == "Datetime":
        number, unit, _zone = value
        return int(number) * (_PER_MS["Nanoseconds"] // _PER_MS[unit])
    return None


def _restrict_topics(path: str | os.PathLike[str], options: LazyOptions, names: list[Any]) -> None:
    view, known = options.get("view", "messages"), options.get("topics")
    if view not in _WITH_TOPICS or options.get("topic_pattern") is not None:
        return
    if not set(names) <= set(_native.log_topics(path)):
        return  # The log may have messages of a topic that was deleted.
    if known is not None:
        kept = [name for name in names if name in set(known)]
    elif view == "messages" and not options.get("system_topics"):
        # Topics of the system are hidden, unless they are named as an option.
        kept = [name for name in names if not _native.is_system_topic(name)]
    else:
        kept = list(names)
    options["topics"] = kept


def _restrict_offsets(options: LazyOptions, operator: str, value: int) -> None:
    if operator in ("Eq", "Gt", "GtEq"):
        first = value + (operator == "Gt")
        options["start_physical_offset"] = max(first, options.get("start_physical_offset") or 0)
    if operator in ("Eq", "Lt", "LtEq"):
        end = value + (operator != "Lt")
        known = options.get("end_physical_offset")
        options["end_physical_offset"] = end if known is None else min(end, known)


def _restrict_times(options: LazyOptions, operator: str, value_ns: int) -> None:
    per_ms = _PER_MS["Nanoseconds"]
    if operator in ("Eq", "Gt", "GtEq"):
        options["start_time"] = max(_time(value_ns // per_ms), _aware(options.get("start_time")) or _time(0))
    if operator in ("Eq", "Lt", "LtEq"):
        end, known = _time(value_ns // per_ms + 1), _aware(options.get("end_time"))
        options["end_time"] = end if known is None else min(end, known)


def _time(milliseconds: int) -> datetime:
    # Far times restrict nothing that a log has.
    return datetime.fromtimestamp(min(max(milliseconds, 0), 253_000_000_000_000) / 1_000, UTC)


def _aware(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _is_empty(path: str | os.PathLike[str], given: LazyOptions, found: LazyOptions) -> bool:
    """Cuts a filter's offsets to what the log has; as options they would be errors. Tells whether nothing is left."""
    start, end = found.get("start_physical_offset"), found.get("end_physical_offset")
    is_new = start != given.get("start_physical_offset"), end != given.get("end_physical_offset")
    if not any(is_new):
        return False
    first, visible = _native.log_range(path)
    if start is not None and is_new[0]:
        found["start_physical_offset"] = start = min(max(start, first), visible)
    if end is not None and is_new[1]:
        found["end_physical_offset"] = end = max(min(end, visible), 0)
    return end is not None and end <= (first if start is None else start)
