"""Runs an event loop in its own thread, for the blocking interface.

In:     coroutines, from any thread.
Out:    their results.
Always: an interrupted caller cancels its coroutine. A call in a forked child raises StoreForkedError.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from txstore.errors import InvalidOptionError, StoreClosedError, StoreForkedError

__all__ = ["LoopThread", "run_on"]

T = TypeVar("T")
_STOP_SECONDS = 10.0


class LoopThread:
    """An event loop with its own thread, which starts at once."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="txstore-remoting", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()

    def stop(self) -> None:
        """Stops the loop and waits up to 10 s for the thread. Idempotent."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)


def run_on(loop: asyncio.AbstractEventLoop, process: int, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on another thread's loop and returns its result.

    `process` is the id of the process that opened the connection. Raises StoreForkedError in another process,
    StoreClosedError after `close`, InvalidOptionError on the loop's own thread, and what the coroutine raises.
    """
    here = os.getpid()
    if here != process:
        work.close()
        raise StoreForkedError(
            f"the connection was opened by process {process}; this is process {here}, a fork of it\n"
            "hint: connect after forking"
        )
    if loop.is_closed():
        work.close()
        raise StoreClosedError("the connection was closed")
    if asyncio._get_running_loop() is loop:
        work.close()
        raise InvalidOptionError(
            "this call would block the event loop that it runs on\nhint: call it in a thread, or use txstore.aio",
            option="loop",
        )
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise StoreClosedError("the connection was closed meanwhile\nhint: connect again") from None
    except BaseException:
        future.cancel()
        raise
