"""Text: how values are written on pages.

In:     numbers, times, names and bodies as they are stored, also hostile ones.
Out:    text without control characters. The templates escape it.
Always: times are UTC.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

__all__ = [
    "Body",
    "age",
    "body_of",
    "counted",
    "line_of",
    "link",
    "milliseconds",
    "number",
    "rate",
    "shown",
    "size",
    "utc",
]

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories of characters that cannot be seen, or that change how the text around them is read."""
BODY_BYTES_MAX = 64 << 10
_HEX_BYTES_MAX = 4 << 10
_HEX_ROW = 16


def shown(value: object) -> str:
    """Returns a name or a text on one line, with characters that cannot be seen as escapes; a dash for None."""
    return "–" if value is None else "".join(_visible(char) for char in str(value))


def _visible(char: str) -> str:
    if char.isprintable() and unicodedata.category(char) not in _HIDDEN:
        return char
    return char.encode("unicode_escape", errors="surrogatepass").decode("ascii")


def number(value: int | None) -> str:
    """Returns a count with separators; a dash for None."""
    return "–" if value is None else f"{value:,}"


def counted(value: int, noun: str) -> str:
    """Returns a count with its noun: `1 group`, `2 groups`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def size(count: int | None) -> str:
    """Returns bytes in the unit that reads best: `1.5 MiB`."""
    if count is None:
        return "–"
    power = min(4, max(0, count.bit_length() - 1) // 10)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{count} B" if power == 0 else f"{count / 1024**power:.1f} {unit}"


def milliseconds(span: timedelta | None) -> int | None:
    """Returns a time span in whole milliseconds."""
    return None if span is None else span // timedelta(milliseconds=1)


def age(span: timedelta | int | None) -> str:
    """Returns a time span (an int is in ms) in its two largest units: `3m 12s`."""
    left = milliseconds(span) if isinstance(span, timedelta) else span
    if left is None:
        return "–"
    if abs(left) < 1000:
        return f"{left} ms"
    sign, left = ("-" if left < 0 else ""), abs(left)
    parts: list[str] = []
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return sign + " ".join(parts[:2])


def utc(time: datetime | None) -> str:
    """Returns a time as `2026-01-31 12:00:00.000`."""
    return "–" if time is None else f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03}"


def link(path: str, /, **parameters: object) -> str:
    """Returns the address of a page. Parameters that are None or empty are left out."""
    kept: Mapping[str, Any] = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept, errors='replace')}" if kept else path


def rate(value: float | None) -> str:
    """Returns a number per second; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def line_of(values: Sequence[float]) -> str:
    """Returns the points of a line over a box of 100 by 24, for an SVG; empty with fewer than two values."""
    if len(values) < 2:
        return ""
    most, step = max(*values, 1.0), 100 / (len(values) - 1)
    return " ".join(f"{at * step:.1f},{23 - 22 * value / most:.1f}" for at, value in enumerate(values))


@dataclass(frozen=True, slots=True)
class Body:
    """A message's body as text to read."""

    kind: str
    """`JSON`, `text` or `hex`."""
    text: str
    size: int
    """Bytes of the whole body."""
    is_cut: bool
    """Whether only the beginning is shown."""


def body_of(body: bytes, form: str | None = None) -> Body:
    """Returns a body as JSON, text, or hexadecimal, whichever it is, or in the `form` that is asked for."""
    is_cut = len(body) > BODY_BYTES_MAX
    text = None if form == "hex" else _decoded(body[:BODY_BYTES_MAX], is_cut=is_cut)
    if text is None:
        return Body("hex", _hex(body[:_HEX_BYTES_MAX]), len(body), len(body) > _HEX_BYTES_MAX)
    if form != "text" and not is_cut and (pretty := _pretty(text)) is not None:
        return Body("JSON", pretty, len(body), is_cut=False)
    lines = ("".join(map(_in_line, line)) for line in text.split("\n"))
    return Body("text", "\n".join(lines), len(body), is_cut)


def _in_line(char: str) -> str:
    return char if char == "\t" else _visible(char)


def _decoded(body: bytes, *, is_cut: bool) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        # The cut may have split the last character.
        return body[: error.start].decode() if is_cut and error.start >= len(body) - 3 else None


def _pretty(text: str) -> str | None:
    if text[:1] not in ("{", "["):
        return None
    try:
        pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return "\n".join("".join(map(_in_line, line)) for line in pretty.split("\n"))


def _hex(data: bytes) -> str:
    rows = []
    for at in range(0, len(data), _HEX_ROW):
        row = data[at : at + _HEX_ROW]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<47}  {readable}")
    return "\n".join(rows)
