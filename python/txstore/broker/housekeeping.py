"""Housekeeping: the background thread of a broker, and its jobs.

In:     jobs, each a call that returns when it wants to run again.
Out:    the calls, one after the other.
Always: a job that raises is logged and runs again at its next time. The monotonic clock is an argument.
Not here: what the jobs do.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from txstore.errors import StoreClosedError

__all__ = ["Housekeeping", "Job"]

Job: TypeAlias = Callable[[], float | None]
"""Runs once. Returns seconds until the next run, if sooner than its interval; None for the interval."""

_log = logging.getLogger("txstore.housekeeping")


@dataclass(slots=True)
class _Entry:
    """A job and when it is due (monotonic seconds)."""

    name: str
    run: Job
    every: float
    due: float


class Housekeeping:
    """Runs jobs in one thread. Call `start` and `stop` once each; `add` and `wake` are thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._entries: dict[str, _Entry] = {}
        # Reentrant, because the garbage collector may close a broker in any thread, even one that holds this lock.
        self._changed = threading.Condition(threading.RLock())
        self._stopping = False
        self._thread: threading.Thread | None = None

    def add(self, name: str, run: Job, every: float) -> None:
        """Adds a job that runs at least every `every` seconds, first after that time or when it is woken."""
        with self._changed:
            self._entries[name] = _Entry(name, run, every, self._monotonic() + every)
            self._changed.notify_all()

    def wake(self, name: str, within: float = 0.0) -> None:
        """Runs a job at most `within` seconds from now. Unknown names are ignored."""
        with self._changed:
            entry = self._entries.get(name)
            if entry is None:
                return
            due = self._monotonic() + within
            if due < entry.due:
                entry.due = due
                self._changed.notify_all()

    def run_due(self) -> float | None:
        """Runs each due job once; returns seconds until the next one is due, None if there are no jobs."""
        now = self._monotonic()
        with self._changed:
            due = sorted((entry for entry in self._entries.values() if entry.due <= now), key=lambda entry: entry.due)
            for entry in due:
                # Before the job runs, so that a wake during the run counts.
                entry.due = now + entry.every
        for entry in due:
            if self._stopping:
                return None
            self._run(entry)
        with self._changed:
            return self._until_next()

    def start(self) -> None:
        """Starts the thread. It is a daemon, so a program can exit without closing its broker."""
        self._thread = threading.Thread(target=self._work, name="txstore-housekeeping", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stops after the current job; returns whether the thread has ended. Called from a job, it does not wait."""
        with self._changed:
            self._stopping = True
            self._entries.clear()
            self._changed.notify_all()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self, entry: _Entry) -> None:
        try:
            sooner = entry.run()
        except StoreClosedError:
            if not self._stopping:
                _log.warning("%s: the store is closed", entry.name, extra={"job": entry.name})
            return
        except Exception:
            _log.exception("%s failed and will run again", entry.name, extra={"job": entry.name})
            return
        if sooner is not None:
            self.wake(entry.name, sooner)

    def _work(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._stopping:
                    return
                # Computed again under the lock, so that no wake is missed before the wait.
                left = self._until_next()
                if left is None or left > 0:
                    self._changed.wait(left)

    def _until_next(self) -> float | None:
        """Returns seconds until the next job, None if there is none. The caller holds the lock."""
        if not self._entries:
            return None
        return max(0.0, min(entry.due for entry in self._entries.values()) - self._monotonic())
