"""Waits for what a store, a server or a client does by itself.

In:     a condition.
Out:    nothing, as soon as it holds.
Always: the time limit is for what never happens, not for what is slow: a busy machine may stall for seconds.
"""

import time
from collections.abc import Callable

__all__ = ["eventually"]


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns when the condition holds. Raises AssertionError if it does not within the time limit."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        time.sleep(0.005)
