"""Runs coroutines that never wait, so that code for threads and for loops is written once.

In:     a coroutine each of whose steps blocks the thread instead of suspending.
Out:    its result.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_now"]

_T = TypeVar("_T")


def run_now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine that never waits. Raises RuntimeError if it does."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a coroutine for a thread waited like one for a loop: this is a bug of txstore")
