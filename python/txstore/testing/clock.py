"""A clock that moves only when a test moves it.

In:     seconds to advance or jump.
Out:    wall time and monotonic time, the same for Python and for the engine.
Always: what watches the clock has done its work when `advance` returns.
"""

import weakref
from typing import Protocol

from txstore._native import HandClock
from txstore.errors import InvalidOptionError

__all__ = ["ManualClock", "Watcher"]


class Watcher(Protocol):
    """Is told that the clock was advanced."""

    def clock_advanced(self) -> None: ...


class ManualClock:
    """A clock that moves only when it is told to. Brokers on it run their background jobs inside `advance`."""

    def __init__(self, time_ms: int = 1_700_000_000_000) -> None:
        """`time_ms` is where the wall clock begins, in milliseconds since the epoch."""
        self._native = HandClock(time_ms)
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"ManualClock({self.time_ms()})"

    @property
    def native(self) -> HandClock:
        """The engine's side of it."""
        return self._native

    def time_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._native.time_ms()

    def monotonic(self) -> float:
        """Seconds of the monotonic clock, which begins at 0."""
        return self._native.monotonic_ms() / 1000

    def advance(self, seconds: float) -> None:
        """Advances both clocks in one step, and runs once the background jobs that are due then, in this thread.

        The jobs deliver delayed messages, sync the log, write offsets and remove old files. Checks are sent only by
        `FakeBroker.run_checks`. Raises InvalidOptionError for a negative time; see `jump`.
        """
        if seconds < 0:
            raise InvalidOptionError(f"seconds must be 0 or more, got {seconds}\nhint: jump()", option="seconds")
        self._native.advance(round(seconds * 1000))
        for watcher in list(self._watchers):
            watcher.clock_advanced()

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, forward or back."""
        self._native.jump(round(seconds * 1000))

    def watch(self, watcher: Watcher) -> None:
        """Tells `watcher` whenever the clock was advanced, while it is referred to elsewhere. For brokers."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Tells it nothing more. For brokers."""
        self._watchers.discard(watcher)
