"""Unattended: finds the rows of other processes that nobody forwards.

In:     the rows that wait, each time that somebody looks.
Out:    those to take over.
Always: a row is taken over only if it has waited, unchanged, for the whole time, and none of its owner's rows was
        deleted meanwhile. So a living owner keeps its rows while it makes progress.
Not here: the database, the clock.
"""

from collections.abc import Iterable, Mapping

__all__ = ["Unattended"]


class Unattended:
    """The rows of other owners that waited when somebody looked last."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[int, dict[int, float]] = {}
        """By owner: since when each row is known to wait."""

    def look(self, waiting: Mapping[int, Iterable[int]], now: float) -> dict[int, set[int]]:
        """Notes which rows wait, by owner. Returns those to take over."""
        before, self._since = self._since, {}
        due: dict[int, set[int]] = {}
        for owner, rows in waiting.items():
            known = before.get(owner, {})
            here = set(rows)
            since = self._since[owner] = {row: known.get(row, now) for row in here}
            if not known.keys() <= here:
                since.update(dict.fromkeys(here, now))
            found = {row for row, first in since.items() if now - first >= self._seconds}
            if found:
                due[owner] = found
        return due

    def taken(self, owner: int, rows: Iterable[int]) -> None:
        """Forgets rows that this process has taken over: that they are deleted says nothing about their owner."""
        since = self._since.get(owner, {})
        for row in rows:
            since.pop(row, None)

    def forget(self) -> None:
        """Begins again, because nobody could forward anything."""
        self._since = {}
