"""Signals: what SIGTERM, Ctrl-C and others do while a block runs.

In:     functions, by signal.
Out:    their calls, in the main thread.
Always: after the block, the handlers of before are back: a command may be called by a program that has its own.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["STOP", "handled"]

STOP = (signal.SIGTERM, signal.SIGINT)
"""What service managers and terminals send to end a program."""


@contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Calls a signal's function when it arrives within the block. Has no effect in other threads than the main one."""
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number, function in handlers.items():
                before[number] = signal.signal(number, lambda *_, function=function: function())
        yield
    finally:
        for number, handler in before.items():
            # None: another library than Python's installed it, and it cannot be named here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
