"""Limits the connections of a server by the process's limit of open files.

Always: some file handles are reserved for the store. The soft limit is raised as far as the hard limit allows.
"""

import logging
import os

from txstore.errors import TooManyFilesError

__all__ = ["RESERVE", "connections_within_limit"]

_log = logging.getLogger("txstore.remoting")

RESERVE = 256
"""File handles reserved for files that the store opens later; at most half of the free ones."""


def connections_within_limit(asked: int) -> int:
    """Returns how many connections may be open, at most `asked`. Raises the process's soft limit if needed.

    Logs a warning with the numbers if they are fewer. Raises TooManyFilesError if there is no handle for any.
    """
    taken = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # Names are enough.
    limit = _raise_soft_limit(taken + RESERVE + asked)
    free = limit - taken
    found = min(asked, free - min(RESERVE, free // 2))
    if found < 1:
        text = f"the process may open {limit} files and has {taken} open, so none are left for connections"
        raise TooManyFilesError(f"{text}\nhint: raise the limit (ulimit -n, LimitNOFILE)")
    if found < asked:
        text = "at most %d connections, not %d: the process may open %d files, has %d open and keeps %d for the store"
        hint = "hint: raise the limit (ulimit -n, LimitNOFILE) or lower connections_max"
        _log.warning(f"{text}\n{hint}", found, asked, limit, taken, free - found, extra={"connections_max": found})
    return found


def _raise_soft_limit(wanted: int) -> int:
    """Raises the soft limit of open files to `wanted`, as far as the hard limit allows, and returns it."""
    import resource  # Windows has no such module, and no such limit of sockets.

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # A sandbox may refuse; the limit then does not change.
        return soft
    return most
