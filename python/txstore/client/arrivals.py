"""Counts arrivals, such as pulled messages, so that threads can wait for the next one.

Always: a thread that waits for a count above the one it saw last misses no arrival.
"""

import threading

__all__ = ["Arrivals"]


class Arrivals:
    """Counts arrivals. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 1

    def bump(self) -> None:
        """Adds one to the count and wakes all waiters."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> int:
        """Waits until the count is above `seen`, at most `seconds`, and returns it."""
        with self._changed:
            if seconds > 0:
                self._changed.wait_for(lambda: self._count > seen, seconds)
            return self._count
