"""How commands speak: tables and facts for people, JSON for programs.

In: plain values. Out: text on stdout. Always: the same facts in both shapes; times in UTC; a table's first line names
its columns. Not here: errors and progress (stderr, `main` and `progress`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

__all__ = ["age", "print_facts", "print_json", "print_table", "size", "utc"]

Value = object


def print_json(value: Value) -> None:
    """One JSON value on one line."""
    print(json.dumps(value, ensure_ascii=False))


def print_facts(facts: Mapping[str, Value]) -> None:
    """Names and values, one a line; underscores read as spaces."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<{width}}  {_text(value)}".rstrip())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
    """Columns as wide as their widest value; numbers to the right, and as they are: most are offsets."""
    kept = list(rows)
    table = [[str(value) if isinstance(value, int) else _text(value) for value in row] for row in kept]
    numeric = [bool(kept) and all(isinstance(row[i], int) for row in kept) for i in range(len(columns))]
    widths = [max(len(name), *(len(row[i]) for row in table), 0) for i, name in enumerate(columns)]
    for row in [list(columns), *table]:
        cells = (
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return str(value)


def utc(timestamp_ms: int | None) -> str | None:
    """Milliseconds since the epoch as `2026-01-31 12:00:00.000Z`."""
    if timestamp_ms is None:
        return None
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}Z"


def age(milliseconds: int | None) -> str | None:
    """A time span in its two largest units: `3m 12s`."""
    if milliseconds is None:
        return None
    sign, left = ("-" if milliseconds < 0 else ""), abs(milliseconds)
    if left < 1000:
        return f"{sign}{left}ms"
    parts: list[str] = []
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return sign + " ".join(parts[:2])


def size(count: int) -> str:
    """Bytes in the unit that reads best: `1.5 MiB`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
