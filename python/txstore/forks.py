"""Runs functions before and after a fork, on systems that have forks.

In:     functions of modules whose threads or locks a forked child does not have.
Not here: what these functions do.
"""

import os
from collections.abc import Callable

__all__ = ["at_fork"]


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Registers functions as `os.register_at_fork` does. Does nothing on Windows, which has no forks."""
    register = getattr(os, "register_at_fork", None)
    if register is None:
        return
    calls = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    register(**{name: call for name, call in calls.items() if call is not None})
