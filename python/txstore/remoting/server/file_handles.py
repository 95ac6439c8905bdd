"""File handles: how many connections a server may take without taking the store's handles.

In:     the connections that were asked for, the process's limits.
Out:    the connections that there are handles for.
Always: a reserve stays for the files of the store; the soft limit is raised as far as the hard one allows.
"""

import logging
import os
import resource

from txstore.errors import TooManyFilesError

__all__ = ["RESERVE", "connections_within_limit"]

_log = logging.getLogger("txstore.remoting")

RESERVE = 256
"""Handles kept for files that the store opens later; at most half of those that are left."""


def connections_within_limit(asked: int) -> int:
    """Returns how many connections may be open, at most `asked`. Raises the process's soft limit where that helps.

    Logs a warning with the figures if there are fewer. Raises TooManyFilesError if there is no handle for any.
    """
    taken = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # Names are enough.
    limit = _raise_soft_limit(taken + RESERVE + asked)
    free = limit - taken
    found = min(asked, free - min(RESERVE, free // 2))
    if found < 1:
        text = f"the process may open {limit} files and has {taken} open: none is left for connections"
        raise TooManyFilesError(f"{text}\nhint: raise the limit (ulimit -n, LimitNOFILE)")
    if found < asked:
        text = "at most %d connections, not %d: the process may open %d files, has %d open and keeps %d for the store"
        hint = "hint: raise the limit (ulimit -n, LimitNOFILE) or lower connections_max"
        _log.warning(f"{text}\n{hint}", found, asked, limit, taken, free - found, extra={"connections_max": found})
    return found


def _raise_soft_limit(wanted: int) -> int:
    """Raises the limit of open files to what is wanted, as far as that is allowed; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # A sandbox may refuse; then the limit stays.
        return soft
    return most
