"""Ports for servers whose address must be known before they listen, or that restart at the same one.

Always: below the range from which the kernel takes the ports of outgoing connections and of listeners at port 0, so
        nothing else takes one between two lives of its server; and each process of a run has a part of its own.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from contextlib import closing

FIRST, LAST = 10_000, 32_000
_PART = 1_000
_PARTS = (LAST - FIRST) // _PART


def part(worker: str, run: int) -> range:
    """The ports of one process: those of one run's workers are apart, and those of two runs most of the time."""
    number = int(found[1]) if (found := re.fullmatch(r"gw(\d+)", worker)) else 0
    first = FIRST + (run + number) % _PARTS * _PART
    return range(first, first + _PART)


def _is_free(port: int) -> bool:
    try:
        with closing(socket.create_server(("127.0.0.1", port))):
            return True
    except OSError:
        return False


_worker = os.environ.get("PYTEST_XDIST_WORKER", "")
_ports = itertools.cycle(part(_worker, os.getppid() if _worker else os.getpid()))


def free_port(neighbour: int = 0) -> int:
    """A port of the loopback on which no server listens, and that no other call returns for a while.

    `neighbour`: the distance of another port that must be free, too.
    """
    for port in itertools.islice(_ports, _PART):
        if _is_free(port) and (neighbour == 0 or _is_free(port + neighbour)):
            return port
    raise OSError(f"all {_PART} ports are in use")
