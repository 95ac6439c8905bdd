"""Arrivals: a count of what came, to wait for in any thread.

In: that something came. Out: a number that has grown. Always: who waits for more than it has seen misses nothing. Not
here: what came.
"""

import threading

__all__ = ["Arrivals"]


class Arrivals:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 1

    def bump(self) -> None:
        """Something came."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> int:
        """Waits until the count is above `seen`, or the time is over; returns the count."""
        with self._changed:
            if seconds > 0:
                self._changed.wait_for(lambda: self._count > seen, seconds)
            return self._count
