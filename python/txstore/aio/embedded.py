"""A store in this process, for asyncio.

In:     the arguments of `txstore.open`, on the running loop.
Out:    coroutines over an embedded broker.
Always: the loop's thread writes, and never waits for a lock, for space or for a sync. A half message whose task is
        cancelled before its local transaction runs is rolled back.
Not here: waiting for a sync (`durable`), the rules of the broker (`txstore.broker`).
"""

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, Unpack, overload

from txstore import broker as embedded
from txstore._native import EndResult, LoopStore, SendResult
from txstore.aio.broker import Broker
from txstore.aio.calls import Calls
from txstore.aio.durable import Durable
from txstore.config import BrokerConfig, BrokerOptions, Duration, as_timedelta
from txstore.consumer import Consumer
from txstore.errors import InvalidOptionError, StoreClosedError, TransactionNotFoundError, TxStoreError
from txstore.interface import BrokerInterface
from txstore.message import Half, LocalTransactionState, Message, SentMessage, transaction_id_of
from txstore.producer import producer as sending
from txstore.producer.local_transaction import LocalTransaction
from txstore.producer.outbox import Outboxes
from txstore.shared.opening import must_be_writer
from txstore.shared.opening import open as open_blocking

if TYPE_CHECKING:
    from txstore.aio.shared import SharedBroker

__all__ = ["EmbeddedBroker", "EmbeddedCalls", "open"]

T = TypeVar("T")
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_log = logging.getLogger("txstore.aio")


@overload
def open(
    path: str | os.PathLike[str],
    *,
    shared: Literal[False] = False,
    listen: bool = True,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> "EmbeddedBroker": ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    shared: Literal[True],
    writer: bool = True,
    open_timeout: Duration = ...,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> "SharedBroker": ...
def open(
    path: str | os.PathLike[str],
    *,
    shared: bool = False,
    writer: bool = True,
    listen: bool = True,
    open_timeout: Duration = 30.0,
    config: BrokerConfig | None = None,
    **options: Unpack[BrokerOptions],
) -> "EmbeddedBroker | SharedBroker":
    """Opens the store at `path`: `async with txstore.aio.open("orders.store") as broker`.

    Takes the arguments of `txstore.open`, except `read_only`. Raises InvalidOptionError; entering raises the other
    errors of `txstore.open`.
    """
    settings = BrokerConfig.from_options(options, config)
    if shared:
        from txstore.aio.shared import SharedBroker

        seconds = as_timedelta(open_timeout, "open_timeout").total_seconds()
        return SharedBroker(path, settings, writer=writer, open_timeout=seconds)
    must_be_writer(writer)
    return EmbeddedBroker(path, settings, listen=listen)


class EmbeddedBroker(Broker):
    """A store in this process, for one event loop. Created by `txstore.aio.open`, and open inside `async with`.

    `blocking` is the broker with all calls that are not coroutines here.
    """

    def __init__(self, path: str | os.PathLike[str], config: BrokerConfig, *, listen: bool = True) -> None:
        super().__init__()
        self._path = path
        self._config = config
        self._listen = listen
        self._broker: embedded.EmbeddedBroker | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"txstore.aio.EmbeddedBroker({os.fspath(self._path)!r})"

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._broker is not None and self._broker.closed

    @property
    def blocking(self) -> embedded.EmbeddedBroker:
        """The open store, for all other calls: `await asyncio.to_thread(broker.blocking.create_topic, "orders")`."""
        if self._broker is None:
            raise StoreClosedError(f"{self!r} is not open yet\nhint: use it inside `async with`")
        return self._broker

    async def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndResult:
        """Commits or rolls back a transaction, as `txstore.EmbeddedBroker.end_transaction` does.

        A transaction given by its id is looked up in a thread, and ended there.
        """
        calls = self._opened
        assert isinstance(calls, EmbeddedCalls)
        if isinstance(transaction, str):
            end = self.blocking.end_transaction
            return await asyncio.to_thread(end, transaction, state, producer_group=producer_group)
        if state not in (_COMMIT, _ROLLBACK):
            raise InvalidOptionError(
                f"state must be LocalTransactionState.COMMIT or ROLLBACK, got {state}", option="state"
            )
        return await calls.end(transaction, state, producer_group)

    if not TYPE_CHECKING:  # Otherwise every name would be an attribute for type checkers.

        def __getattr__(self, name: str) -> NoReturn:
            what = f"txstore.aio.EmbeddedBroker has no attribute {name}"
            if hasattr(embedded.EmbeddedBroker, name):
                what += f"\nhint: await asyncio.to_thread(broker.blocking.{name}, …)"
            raise AttributeError(what)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Calls:
        thread = ThreadPoolExecutor(1, thread_name_prefix="txstore-writer")
        opening = thread.submit(self._open_blocking)
        try:
            self._broker = await asyncio.wrap_future(opening)
        except BaseException:
            # In the same thread, so after the store was opened, if that has begun.
            thread.submit(_close_unused, opening)
            thread.shutdown(wait=False)
            raise
        calls = self._calls_on(self._broker, loop, thread)
        weakref.finalize(self, _abandon, loop, calls).atexit = False
        return calls

    def _open_blocking(self) -> embedded.EmbeddedBroker:
        """Opens the store. In the thread that writes when the loop's thread cannot."""
        return open_blocking(self._path, config=self._config, listen=self._listen)

    def _calls_on(
        self, broker: embedded.EmbeddedBroker, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor
    ) -> "EmbeddedCalls":
        """Returns the calls that producers make on the open store."""
        return EmbeddedCalls(broker, loop, thread)

    async def _close(self, calls: Calls) -> None:
        if self._closing is None:
            self._closing = calls.loop.create_task(self._close_once(calls))
        await asyncio.shield(self._closing)

    async def _close_once(self, calls: Calls) -> None:
        assert isinstance(calls, EmbeddedCalls)
        try:
            await asyncio.to_thread(calls.finish)
        finally:
            calls.close()

    def _writable(self) -> BrokerInterface:
        self.blocking._must_write("a producer")
        return self.blocking

    def _outboxes(self) -> Outboxes:
        return self.blocking.outboxes

    @property
    def _blocking_broker(self) -> embedded.EmbeddedBroker:
        return self.blocking

    def _consumers(self) -> Callable[..., Consumer]:
        return self.blocking.consumer


class EmbeddedCalls(Calls):
    """The calls of producers on an embedded broker.

    A write is made on the loop's thread if it need not wait for a lock or for space; otherwise `thread` makes it. So
    the messages that one task sends are in order, as those that one thread sends to a blocking broker.
    """

    def __init__(
        self, broker: embedded.EmbeddedBroker, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor
    ) -> None:
        super().__init__(loop, broker.config.check_threads)
        self._broker = broker
        self._store = LoopStore.start(broker.store)
        self._durable = Durable(self._store, loop)
        self._thread = thread

    def knows_topic(self, producer: sending.Producer, topic: str) -> bool:
        return topic in producer._queues

    async def find_topic(self, producer: sending.Producer, topic: str) -> None:
        work = self._submit(producer._queue_ids, topic)
        if work is None:
            raise _closed()
        await asyncio.wrap_future(work)

    async def send(self, message: Message, queue_id: int, group: str) -> SendResult:
        return await self._written(partial(self._store.append, message, queue_id))

    async def send_batch(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str
    ) -> Sequence[SendResult]:
        return await self._written(partial(self._store.append_many, messages, queue_ids))

    async def recall(self, handle: str) -> str:
        return await asyncio.to_thread(self._broker.recall, handle)

    async def prepare(self, message: Message, queue_id: int, group: str, owner: int) -> SendResult:
        # A message that was sent before may belong to a local transaction that runs elsewhere.
        unwanted = self._leave_to_check if message.transaction_id is not None else partial(self._roll_back, group)
        return await self._prepared(partial(self._store.prepare, message, queue_id, group, owner), unwanted)

    async def prepare_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int
    ) -> SendResult:
        write = partial(self._store.prepare_many, messages, queue_ids, group, owner)
        return await self._prepared(write, partial(self._roll_back, group))

    async def _prepared(
        self, write: Callable[[bool], tuple[SendResult, int] | None], unwanted: Callable[[SendResult], None]
    ) -> SendResult:
        half, durable_first = await self._stored(write, unwanted)
        if durable_first:
            try:
                await self._durable.wait(durable_first)
            except asyncio.CancelledError:
                self._submit(unwanted, half)
                raise
        return half

    async def end(self, half: Half, state: LocalTransactionState, group: str | None) -> EndResult:
        try:
            return await self._end(half, state, group, None)
        except TransactionNotFoundError:
            # If retention removed the half, the records that remain are found by its id alone.
            return await self._end(half, state, group, transaction_id_of(half))

    def local_transaction_ended(self, producer: sending.TransactionProducer, local: LocalTransaction[Half]) -> None:
        if self._submit(producer._ended, local) is None:
            producer._forget(local)

    async def close_producer(self, producer: sending.Producer) -> None:
        work = None if producer.closed else self._submit(producer.close)
        if work is not None:  # Otherwise the broker closes it.
            await asyncio.shield(asyncio.wrap_future(work))

    def finish(self) -> None:
        """Makes the calls that still wait, and closes the broker. Not on the loop's thread."""
        self._thread.shutdown()
        self._broker.close()

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        self._durable.close()
        super().close()

    async def _written(self, write: Callable[[bool], tuple[T, int] | None]) -> T:
        """Writes, and waits until the write counts."""
        value, durable_first = await self._stored(write)
        if durable_first:
            await self._durable.wait(durable_first)
        return value

    async def _stored(
        self, write: Callable[[bool], tuple[T, int] | None], unwanted: Callable[[T], object] | None = None
    ) -> tuple[T, int]:
        """Writes; `write(wait)` returns None if it would have to wait. Calls `unwanted` with what was written after a
        cancellation."""
        written = write(False)
        if written is not None:
            return written
        work = self._submit(write, True)
        if work is None:
            raise _closed()
        try:
            written = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if unwanted is not None:
                self._submit(_with_value, work, unwanted)
            raise
        assert written is not None  # A write that may wait is made.
        return written

    async def _end(
        self, half: Half, state: LocalTransactionState, group: str | None, transaction_id: str | None
    ) -> EndResult:
        ended = await self._written(
            partial(
                self._store.end_transaction,
                half.queue_offset,
                half.physical_offset,
                commit=state is _COMMIT,
                transaction_id=transaction_id,
                producer_group=group,
                by_hand=group is None,
            )
        )
        if isinstance(ended, TxStoreError):
            raise ended
        return ended

    def _submit(self, call: Callable[..., T], *arguments: object) -> Future[T] | None:
        """Has the thread make a call that may wait, after those that wait already. Returns None after it was closed."""
        try:
            return self._thread.submit(call, *arguments)
        except RuntimeError:
            return None

    def _roll_back(self, group: str, half: Half) -> None:
        """Rolls back a half message whose local transaction never runs. In the thread."""
        try:
            # Nobody waits for its sync. If a power loss takes the end, a check ends the transaction.
            self._store.end_transaction(
                half.queue_offset, half.physical_offset, True, commit=False, producer_group=group
            )
        except TxStoreError as error:
            _log.warning("a cancelled transaction is left to a check: %s", error, extra={"group": group})
            self._leave_to_check(half)

    def _leave_to_check(self, half: Half) -> None:
        try:
            self._broker.local_transaction_ended(half)
        except TxStoreError:
            return  # The store is closed or broken. The next opening takes the transaction as no longer running.


def _closed() -> StoreClosedError:
    return StoreClosedError("the store is closed")


def _with_value(work: Future[tuple[T, int] | None], then: Callable[[T], object]) -> None:
    """Calls `then` with the value that was written, if it was."""
    try:
        written = work.result()
    except (CancelledError, TxStoreError):
        return
    if written is not None:
        then(written[0])


def _close_unused(opening: Future[embedded.EmbeddedBroker]) -> None:
    """Closes a store that nobody waited for any more."""
    try:
        opening.result().close()
    except Exception:
        return  # It was not opened, so there is nothing to close.


def _abandon(loop: asyncio.AbstractEventLoop, calls: EmbeddedCalls) -> None:
    """Releases what the loop holds of a broker that was never closed. The collector calls it, in any thread."""
    try:
        loop.call_soon_threadsafe(calls.close)
    except RuntimeError:
        return  # The loop was closed, and its selector with it.
