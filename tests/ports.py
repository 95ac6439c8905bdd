"""Ports for servers whose address must be known before they listen, or that restart at the same one.

Always: below the range from which the kernel takes the ports of outgoing connections and of listeners at port 0, so
        nothing else takes one between two lives of its server; and each process, of this run and of others on the
        machine, has a part of its own, which a locked file keeps for it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

FIRST, LAST = 10_000, 32_000
_PART = 500
_PARTS = (LAST - FIRST) // _PART
_LOCKS = Path(tempfile.gettempdir()) / f"txstore-test-ports-{os.getuid()}"


class Part:
    """Ports that no other process takes, until this one ends or lets go."""

    def __init__(self, directory: Path) -> None:
        """Takes a part that is free. Raises OSError if there is none."""
        directory.mkdir(exist_ok=True)
        for number in range(_PARTS):
            lock = os.open(directory / str(number), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock = lock
            first = FIRST + number * _PART
            self.ports = range(first, first + _PART)
            """They are in turn, so that one is not given again soon."""
            return
        raise OSError(f"all {_PARTS} parts of the ports {FIRST} to {LAST} are taken by other tests")

    def let_go(self) -> None:
        os.close(self._lock)


def _is_free(port: int) -> bool:
    """Whether nothing listens at a port of any address: RocketMQ's port for slaves listens at all of them."""
    try:
        with closing(socket.create_server(("", port))):
            return True
    except OSError:
        return False


@cache
def _part() -> Part:
    return Part(_LOCKS)


@cache
def _ports() -> Iterator[int]:
    return itertools.cycle(_part().ports)


def free_port(below: int = 0) -> int:
    """A port at which no server listens, and that no other call returns for a while.

    `below`: so far below it is another port that is given with it. RocketMQ listens at the one that is 2 below, too.
    """
    given: set[int] = set()
    for port in itertools.islice(_ports(), _PART):
        if not _is_free(port):
            continue
        given.add(port)
        if port - below in given:
            return port
    raise OSError(f"all {_PART} ports are in use")
