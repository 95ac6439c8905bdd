"""Forks: a process is forked only while txstore's own threads are outside the database.

In:     the calls that threads of txstore make to a database (checks, the forwarder, cleaning).
Out:    forks in between.
Always: SQLite locks its memory for a moment in each call. A child that another thread forks in that moment would wait
        for this lock for ever, at its first use of SQLite. A fork waits at most a second for calls in progress.
Not here: the database calls of the user's own threads. A program that forks while those run meets the same in SQLite
          alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from txstore.forks import at_fork

__all__ = ["inside_database", "outside_database"]

_FORK_SECONDS_MAX = 1.0


class _Gate:
    """Counts the threads inside, and closes for a fork."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.is_forking = False

    def enter(self) -> None:
        with self.changed:
            while self.is_forking:
                self.changed.wait()
            self.inside += 1

    def leave(self) -> None:
        with self.changed:
            self.inside -= 1
            if self.is_forking:
                self.changed.notify_all()


_gate = _Gate()


@contextmanager
def inside_database() -> Iterator[None]:
    """Makes forks wait until the end of the block."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        gate.leave()


@contextmanager
def outside_database() -> Iterator[None]:
    """Lets forks happen during a wait within `inside_database`."""
    gate = _gate
    gate.leave()
    try:
        yield
    finally:
        gate.enter()


def _before() -> None:
    gate = _gate
    with gate.changed:
        gate.is_forking = True
        gate.changed.wait_for(lambda: gate.inside == 0, _FORK_SECONDS_MAX)


def _after_in_parent() -> None:
    gate = _gate
    with gate.changed:
        gate.is_forking = False
        gate.changed.notify_all()


def _after_in_child() -> None:
    global _gate
    _gate = _Gate()  # The threads that were counted do not exist here.


at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
