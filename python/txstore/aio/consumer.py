"""Consumers for asyncio: a blocking consumer in a thread of its own.

In:     a call that creates the blocking consumer.
Out:    messages, by `await` and `async for`.
Always: the calls keep the order in which they were made. A message of a cancelled call is delivered again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

from txstore import consumer as blocking
from txstore.aio.user_calls import call_on
from txstore.config import Duration, as_timedelta
from txstore.errors import StoreClosedError
from txstore.message import ConsumeResult, MessageQueue, ReceivedMessage

__all__ = ["Consumer", "Handler"]

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[ConsumeResult | None] | ConsumeResult | None]
"""Handles one message. None means success."""

T = TypeVar("T")
_SLICE_SECONDS = 0.5  # A wait in a thread cannot be cancelled, so it is cut into slices.


class Consumer:
    """Reads a topic for a group. Used by one task.

    `async with broker.consumer(group, topic) as consumer`, then `async for`. As in `txstore.Consumer`, asking for the
    next message acknowledges the last one, and leaving the block normally acknowledges the current one. After an
    exception, a cancellation, or a `break` out of the loop it is not acknowledged and will be delivered again.
    """

    def __init__(self, make: Callable[[], blocking.Consumer], name: str, must_be_on_loop: Callable[[], None]) -> None:
        self._make = make
        self._must_be_on_loop = must_be_on_loop
        # One thread, because its calls wait for brokers and must keep the order in which they were made.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._opened: blocking.Consumer | None = None

    async def __aenter__(self) -> Self:
        self._must_be_on_loop()
        creating = self._thread.submit(self._make)
        try:
            self._opened = await asyncio.wrap_future(creating)
        except asyncio.CancelledError:
            # In the same thread, so after the consumer was created, if that has begun.
            self._thread.submit(_close_unused, creating)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self._consumer.closed:
                await self.acknowledge()
        finally:
            await self.close()

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._consumer.group

    @property
    def topic(self) -> str:
        """The topic that it reads; the names of several, separated by commas; or the pattern."""
        return self._consumer.topic

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads now, sorted. With a pattern, those that match it are added as they are found."""
        return self._consumer.topics

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of its topics that are assigned to it now, sorted by topic and queue id."""
        return self._consumer.queues

    @property
    def queue_ids(self) -> tuple[int, ...]:
        """The queues of its topic that are assigned to it now, sorted. For several topics, see `queues`."""
        return self._consumer.queue_ids

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._consumer.closed

    async def poll(self, max_messages: int = 32, timeout: Duration | None = 0.0) -> list[ReceivedMessage]:
        """Returns up to `max_messages` and acknowledges the last ones. Waits for the first, as `txstore.Consumer`."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + as_timedelta(timeout, "timeout").total_seconds()
        while True:
            left = _SLICE_SECONDS if until is None else max(0.0, until - loop.time())
            taken = await self._in_thread(self._consumer.poll, max_messages, min(left, _SLICE_SECONDS))
            if taken or (until is not None and loop.time() >= until):
                return taken

    async def acknowledge(self) -> None:
        """Acknowledges the messages handed out last. Raises the errors of sending a message back."""
        await self._in_thread(self._consumer.acknowledge)

    async def run(
        self, handler: Handler, *, threads: int = 20, orderly: bool = False, timeout: Duration | None = None
    ) -> None:
        """Calls `handler(message)`, a coroutine function or a plain one, for each message until `close`.

        `threads` is the number of messages handled at the same time. As `txstore.Consumer.run`. A cancellation closes
        the consumer after the handlers that have begun.
        """
        loop = asyncio.get_running_loop()

        def handle(message: ReceivedMessage) -> ConsumeResult | None:
            return call_on(loop, handler, message)

        consumer = self._consumer
        running = loop.run_in_executor(
            self._thread, lambda: consumer.run(handle, threads=threads, orderly=orderly, timeout=timeout)
        )
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.to_thread(consumer.close)
            raise

    def __aiter__(self) -> "_Messages":
        return _Messages(self)

    async def close(self) -> None:
        """Leaves the group and sends its offsets. Unacknowledged messages are delivered again. Idempotent."""
        if self._opened is not None:
            # Not in the consumer's own thread, where a handler may run until the consumer is closed.
            await asyncio.to_thread(self._opened.close)
        self._thread.shutdown(wait=False)

    @property
    def _consumer(self) -> blocking.Consumer:
        if self._opened is None:
            raise StoreClosedError("the consumer is not open yet\nhint: async with broker.consumer(…) as consumer")
        return self._opened

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        self._must_be_on_loop()
        if self._opened is not None and self._opened.closed:
            raise StoreClosedError(f"the consumer of group {self._opened.group} is closed")
        work = asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._put_back()
            raise

    def _put_back(self) -> None:
        """Returns unacknowledged messages to the queue, including those that a cancelled call is about to take."""
        if self._opened is not None and not self._opened.closed:
            self._thread.submit(self._opened._put_back)


class _Messages:
    """One loop over a consumer's messages. CPython frees it as soon as the loop is left, also by `break`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._unacknowledged = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._unacknowledged = False
        try:
            (message,) = await self._consumer.poll(1, None)
        except StoreClosedError:
            if self._consumer.closed:
                raise StopAsyncIteration from None  # Closed by another task: the loop ends.
            raise
        self._unacknowledged = True
        return message

    def __del__(self) -> None:
        if self._unacknowledged:
            self._consumer._put_back()


def _close_unused(creating: Future[blocking.Consumer]) -> None:
    """Closes a consumer that nobody waited for any more."""
    if not creating.cancelled() and creating.exception() is None:
        creating.result().close()
