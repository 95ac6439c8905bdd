"""What a long examination tells about its progress.

In:     what is done, and of how much.
Out:    the calls, for a program that shows them.
Not here: showing it (the command line).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

__all__ = ["Progress", "Steps", "unwatched"]


class Steps(Protocol):
    """The steps of one phase."""

    def to(self, done: int) -> None:
        """Sets how much is done."""


class Progress(Protocol):
    """Begins a phase: `with progress("reading the log", total) as steps: steps.to(done)`."""

    def __call__(self, label: str, total: int, /) -> AbstractContextManager[Steps]: ...


class _Unwatched:
    def to(self, done: int) -> None:
        pass


def unwatched(label: str, total: int, /) -> AbstractContextManager[Steps]:
    """Begins a phase without showing its progress."""
    return nullcontext(_Unwatched())
