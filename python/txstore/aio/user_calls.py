"""Calls between an event loop and threads: the loop waits for threads, and threads wait for the user's coroutines.

In:     calls that may block, and the user's functions, which may be coroutines.
Out:    their results.
Always: a thread that waits for a coroutine is released when the loop is closed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from txstore.errors import StoreClosedError

__all__ = ["call_on"]

T = TypeVar("T")
_LOOK_SECONDS = 0.5  # Nothing tells a thread that a loop was closed, so it looks.


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., Awaitable[T] | T], *arguments: object) -> T:
    """Calls a user's function in this thread, which is not the loop's. What it returns is awaited on the loop.

    Raises what it raises, and StoreClosedError if the loop is closed before it has returned.
    """
    answer = call(*arguments)
    if not inspect.isawaitable(answer):
        return answer
    work: Coroutine[Any, Any, T] = answer if inspect.iscoroutine(answer) else _awaited(answer)
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise _closed() from None
    while True:
        try:
            return future.result(_LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # The coroutine itself raised it, or returned in this moment.
                return future.result()
            if loop.is_closed():
                raise _closed() from None


async def _awaited(result: Awaitable[T]) -> T:
    return await result


def _closed() -> StoreClosedError:
    return StoreClosedError("the event loop of this broker was closed\nhint: close the broker first, with `async with`")
