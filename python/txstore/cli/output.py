"""Output: tables and facts for people, JSON for programs.

In:     plain values.
Out:    text on stdout.
Always: the same facts in both forms. Times in UTC. A table begins with the names of its columns. Colours only on a
        terminal, and not with NO_COLOR. No control character of a message reaches the terminal.
By hand: tables. rich's take seconds for tens of thousands of rows, and in a pipe they pad or cut lines.
Not here: errors and progress, which go to stderr (`commands` and `progress`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TextIO

__all__ = [
    "LateCell",
    "age",
    "age_cell",
    "age_colour",
    "is_coloured",
    "lag_cell",
    "lag_colour",
    "paint",
    "paint_state",
    "print_facts",
    "print_json",
    "print_table",
    "printable",
    "size",
    "utc",
]

Value = object
_COLOURS = {"bold": 1, "faint": 2, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}
# From here on a number is yellow, or red. The alerts of docs/operate/deploy/alerts.yml have the same red limits.
_AGE_MS = (60_000, 600_000)
_LAG = (1, 10_000)
_STATES = {"pending": "yellow", "committed": "green", "rolled_back": "magenta", "discarded": "red"}


@dataclass(frozen=True, slots=True)
class LateCell:
    """A cell of a table that is coloured by how late or how far off something is."""

    value: int | str
    colour: str | None


def age_colour(milliseconds: int | None) -> str | None:
    """Returns the colour of how long something waits: none below a minute, red from ten minutes on."""
    return _level(milliseconds, _AGE_MS)


def lag_colour(messages: int | None) -> str | None:
    """Returns the colour of a group's lag in messages: none without any, red from 10,000 on."""
    return _level(messages, _LAG)


def age_cell(milliseconds: int | None) -> LateCell | None:
    """Returns a time span as a cell that is coloured by its length."""
    text = age(milliseconds)
    return None if text is None else LateCell(text, age_colour(milliseconds))


def lag_cell(messages: int) -> LateCell:
    """Returns a lag as a cell that is coloured by its size."""
    return LateCell(messages, lag_colour(messages))


def _level(value: int | None, limits: tuple[int, int]) -> str | None:
    warning, bad = limits
    return None if value is None or value < warning else "yellow" if value < bad else "red"


def is_coloured(stream: TextIO) -> bool:
    """Tells whether to use colours on this stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Returns text in a colour, if colours are used."""
    if not is_coloured(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def paint_state(state: str) -> str:
    """Returns a transaction's state in words, in its colour."""
    colour = _STATES.get(state)
    return paint(state.replace("_", " "), colour) if colour else state.replace("_", " ")


def printable(text: str) -> str:
    """Returns text on one line, with control characters as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_json(value: Value) -> None:
    """Prints one JSON value on one line."""
    print(json.dumps(value, ensure_ascii=False))


def print_facts(facts: Mapping[str, Value]) -> None:
    """Prints names and values, one per line; underscores become spaces."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<{width}}  {_painted(_text(value))}".rstrip())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
    """Prints a table. Numbers are aligned right and printed without separators, as most are offsets."""
    given = list(rows)
    kept = [[cell.value if isinstance(cell, LateCell) else cell for cell in row] for row in given]
    colours = [[cell.colour if isinstance(cell, LateCell) else None for cell in row] for row in given]
    table = [[str(value) if isinstance(value, int) else _text(value) for value in row] for row in kept]
    numeric = [bool(kept) and all(isinstance(row[i], int) for row in kept) for i in range(len(columns))]
    widths = [max(len(name), *(len(row[i]) for row in table), 0) for i, name in enumerate(columns)]
    for number, row in enumerate([list(columns), *table]):
        cells = (
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        if number == 0:
            print(paint("  ".join(cells).rstrip(), "bold"))
        else:
            painted = (
                _painted(cell) if colour is None else paint(cell, colour)
                for cell, colour in zip(cells, colours[number - 1], strict=True)
            )
            print("  ".join(painted).rstrip())


def _painted(cell: str) -> str:
    colour = _STATES.get(cell.strip())
    return cell if colour is None else paint(cell, colour)


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return printable(" ".join(map(str, value))) or "-"
    return printable(str(value))


def utc(time: datetime) -> str:
    """Formats a time in UTC as `2026-01-31 12:00:00.000Z`."""
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03}Z"


def age(milliseconds: int | None) -> str | None:
    """Formats a time span in its two largest units: `3m 12s`."""
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
    """Formats bytes in the unit that reads best: `1.5 MiB`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
