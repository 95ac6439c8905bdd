"""Sparklines: the recent past of numbers as a row of blocks.

In:     the facts of each view of `txstore top`.
Out:    at most 20 characters for each number, the last one on the right.
Always: keeps what is shown now only, so what a store no longer has costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

__all__ = ["Past", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_VALUES = 20


class Past:
    """The last values of each number."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], deque[float]] = {}

    def add(self, facts: dict[str, Any]) -> None:
        """Adds the numbers of a view."""
        now: dict[tuple[str, Hashable], float] = {
            ("log", ""): facts["log_bytes_per_second"] or 0.0,
            ("pending", ""): facts["pending"],
        }
        now |= {("topic", row["topic"]): row["per_second"] or 0.0 for row in facts["topics"]}
        now |= {("lag", (row["group"], row["topic"])): row["lag"] for row in facts["groups"]}
        self._kept = {name: self._kept.get(name, deque(maxlen=_VALUES)) for name in now}
        for name, value in now.items():
            self._kept[name].append(value)

    def of(self, what: str, name: Hashable) -> Sequence[float]:
        """Returns the values of a number, oldest first: `log`, `pending`, a `topic`'s rate, a group's `lag`."""
        return list(self._kept.get((what, name), ()))


def sparkline(values: Sequence[float]) -> str:
    """Returns the values as blocks between zero and the largest one. A value above zero is never the lowest block."""
    most = max(values, default=0.0)
    if most <= 0:
        return _BLOCKS[0] * len(values)
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[0 if value <= 0 else max(1, round(value / most * last))] for value in values)
