"""Waiting: for what a store, a server or a client does by itself.

In: what must come to hold. Out: nothing, as soon as it holds. Always: the time limit is for what never comes, not for
what is slow: a busy machine may stand still for seconds. Not here: that something does not happen.
"""

import time
from collections.abc import Callable

__all__ = ["eventually"]


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns when it holds. Raises AssertionError if it does not for so long."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        time.sleep(0.005)
