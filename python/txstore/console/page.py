"""Page: what a page and an action of the console are, and what they are asked.

In:     the parameters of a request.
Out:    what a template shows; what an action has done.
Always: a parameter that is missing or invalid is an error that names it.
Not here: the pages (`pages`), HTTP (`web`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from txstore.console.operator import Operator
from txstore.console.rates import Rates
from txstore.console.text import link
from txstore.console.viewers import Viewer
from txstore.errors import InvalidOptionError

__all__ = ["ROWS", "Action", "Asked", "Done", "Page", "Part", "part_of"]

ROWS = 50
"""Rows of one page of a list."""
_REFRESH_SECONDS = (5, 30)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a known viewer."""

    operator: Operator
    rates: Rates
    viewer: Viewer
    parameters: Mapping[str, str]
    """Of the address."""
    form: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """Returns a parameter; None if it is missing or empty."""
        found = self.form.get(name) if name in self.form else self.parameters.get(name)
        return found.strip() or None if found is not None else None

    def need(self, name: str) -> str:
        """Returns a parameter. Raises InvalidOptionError without it."""
        found = self.get(name)
        if found is None:
            raise InvalidOptionError(f"{name} is missing\nhint: follow a link of the page before", option=name)
        return found

    def number(self, name: str, default: int, most: int = 2**63 - 1) -> int:
        """Returns a whole number from 0 to `most`. Raises InvalidOptionError for anything else."""
        found = self.get(name)
        if found is None:
            return default
        if not found.isascii() or not found.isdigit() or len(found) > 19 or int(found) > most:
            raise InvalidOptionError(f"{name} must be a number from 0 to {most}, got {found[:40]!r}", option=name)
        return int(found)

    @property
    def refresh(self) -> int | None:
        """After how many seconds the page is loaded again; None: never."""
        return next((one for one in _REFRESH_SECONDS if self.parameters.get("refresh") == str(one)), None)

    def here(self, path: str, **changed: object) -> str:
        """Returns the address of this page with other parameters."""
        return link(path, **{**self.parameters, **changed})


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `show` returns what its template needs."""

    path: str
    title: str
    template: str
    show: Callable[[Asked], Mapping[str, Any]]
    is_admin_only: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What an action has done, and the page that shows it."""

    text: str
    to: str


@dataclass(frozen=True, slots=True)
class Action:
    """A change of the store, after a confirmation."""

    path: str
    name: str
    """In the log, and on its button."""
    fields: tuple[str, ...]
    """The parameters that it needs."""
    question: Callable[[Asked], str]
    """What is asked before; says what will happen."""
    do: Callable[[Asked], Done]
    optional: tuple[str, ...] = ()
    """Those of `fields` that may be missing."""


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page of a list."""

    rows: Sequence[T]
    start: int
    total: int

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + len(self.rows)

    @property
    def before(self) -> int | None:
        """Where the page before begins; None if this is the first."""
        return max(0, self.start - ROWS) if self.start > 0 else None

    @property
    def after(self) -> int | None:
        """Where the next page begins; None if this is the last."""
        return self.end if self.end < self.total else None


def part_of(names: Sequence[str], asked: Asked) -> Part[str]:
    """Returns the asked page of a sorted list of names, of those that contain the text in the parameter `q`."""
    wanted = (asked.get("q") or "").lower()
    found = [name for name in names if wanted in name.lower()] if wanted else names
    start = min(asked.number("start", 0), max(0, len(found) - 1))
    return Part(found[start : start + ROWS], start, len(found))
