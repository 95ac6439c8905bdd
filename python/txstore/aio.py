"""The asyncio interface to a remote broker: the same producers, listeners and consumers, with `await`.

In:     the arguments of `txstore.connect`, on the running loop.
Out:    coroutines over the same core as the blocking interface.
Always: nothing blocks the loop: a listener or handler that is not a coroutine runs in a bounded pool. A cancelled call
        takes no effect: its transaction is left to a check, its message is delivered again.
Not here: an embedded store, whose calls are quick.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias, TypeVar, Unpack, cast, overload

from txstore import consumer as blocking
from txstore.client.administration import Administration
from txstore.client.broker import EMBEDDED_ONLY, RemoteBroker, Session
from txstore.client.options import ConnectConfig, ConnectOptions
from txstore.client.sending import RemoteEnd, RemoteSent
from txstore.config import Duration, as_timedelta
from txstore.errors import (
    EmbeddedOnlyError,
    InvalidOptionError,
    StoreClosedError,
    TxStoreError,
)
from txstore.listener import AnyChecker, AnyExecuter, AnyListener, MaybeAsyncState
from txstore.message import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageModel,
    ReceivedMessage,
    TransactionSendResult,
)
from txstore.producer import AsyncSession, LocalDatabase, QueueSelector
from txstore.producer import producer as sending
from txstore.producer.local_transaction import LocalTransaction, TransactionBlock, without_delay

__all__ = ["Broker", "Consumer", "Handler", "Producer", "Transaction", "TransactionProducer", "connect"]

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[ConsumeResult | None] | ConsumeResult | None]
"""Handles one message. None means success."""

T = TypeVar("T")
_SLICE_SECONDS = 0.5  # A wait in a thread cannot be cancelled, so it is cut into slices.


def connect(address: str, *, config: ConnectConfig | None = None, **options: Unpack[ConnectOptions]) -> "Broker":
    """Connects to a remote broker: `async with txstore.aio.connect("127.0.0.1:9876") as broker`.

    Takes the arguments of `txstore.connect`.

    Raises InvalidOptionError; entering raises BrokerUnreachableError, BrokerTimeoutError.
    """
    return Broker(address, ConnectConfig.from_options(options, config))


class Broker(Administration):
    """A remote broker, for one event loop. Created by `txstore.aio.connect`, and open inside `async with`.

    The administrative calls are those of an embedded broker, as coroutines; with accounts, they need an administrator.
    """

    def __init__(self, address: str, options: ConnectConfig) -> None:
        self._session = Session(address, options)
        super().__init__(self._session.client)
        self._threads = ThreadPoolExecutor(options.check_threads, thread_name_prefix="txstore-listener")
        self._opened: RemoteBroker | None = None

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise InvalidOptionError("the connection was already opened\nhint: call txstore.aio.connect again")
        await self._session.client.start()
        self._opened = RemoteBroker(self._session, asyncio.get_running_loop(), lambda: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"txstore.aio.Broker({self.address!r})"

    @property
    def address(self) -> str:
        """The address that was given to `connect`."""
        return self._session.client.address

    @property
    def client_id(self) -> str:
        """The name of this connection at brokers and among a group's clients."""
        return self._session.client.client_id

    @property
    def closed(self) -> bool:
        """Whether the connection was closed."""
        return self._opened is not None and self._opened.closed

    async def close(self) -> None:
        """Waits for running checks, closes producers and consumers, and disconnects. Idempotent."""
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)
        self._threads.shutdown(wait=False)

    def producer(self, group: str) -> "Producer":
        """Creates a producer of plain messages. Raises InvalidNameError, StoreClosedError."""
        return Producer(self, sending.Producer(self._remote, group))

    def transaction_producer(
        self,
        group: str,
        listener: AnyListener[MaybeAsyncState] | None = None,
        *,
        check_listener: AnyChecker[MaybeAsyncState] | None = None,
        database: LocalDatabase | None = None,
    ) -> "TransactionProducer":
        """Creates a producer of transactional messages. It answers checks until it is closed.

        The listener's methods may be coroutines. `database`, a `txstore.database.Database`, replaces the listeners and
        answers checks from its rows. Raises InvalidNameError, InvalidOptionError, StoreClosedError.
        """
        inner = sending.TransactionProducer(
            self._remote, group, listener, check_listener=check_listener, database=database
        )
        return TransactionProducer(self, inner)

    def consumer(
        self,
        group: str,
        topic: str,
        tags: str | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
    ) -> "Consumer":
        """Creates a consumer: `async with broker.consumer(group, topic) as consumer`. Arguments as for
        `txstore.connect(…).consumer`.

        Entering raises InvalidNameError, InvalidOptionError, and the errors of requests to a broker.
        """
        remote = self._remote

        def make() -> blocking.Consumer:
            return remote.consumer(
                group,
                topic,
                tags,
                start=start,
                message_model=message_model,
                instance_name=instance_name,
                max_reconsume_times=max_reconsume_times,
            )

        return Consumer(make, f"txstore-{group}")

    async def end_transaction(
        self, transaction: str | RemoteSent, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> RemoteEnd:
        """Commits or rolls back a transaction, as `RemoteBroker.end_transaction` does."""
        return await self._session.end(transaction, state, producer_group)

    def __getattr__(self, name: str) -> NoReturn:
        if name in EMBEDDED_ONLY:
            raise EmbeddedOnlyError(f"a remote broker does not offer {name}\nhint: {EMBEDDED_ONLY[name]}")
        if hasattr(RemoteBroker, name):
            raise EmbeddedOnlyError(f"the asyncio interface does not offer {name}\nhint: use txstore.connect")
        raise AttributeError(f"txstore.aio.Broker has no attribute {name}")

    async def _administer(self, name: str, **arguments: Any) -> Any:
        if self._remote.closed:
            raise StoreClosedError(f"the connection to {self.address} was closed\nhint: txstore.aio.connect again")
        return await super()._administer(name, **arguments)

    @property
    def _remote(self) -> RemoteBroker:
        if self._opened is None:
            raise StoreClosedError(
                f"the connection to {self.address} is not open yet\nhint: async with txstore.aio.connect(…) as broker"
            )
        return self._opened

    async def _choose(
        self,
        producer: sending.Producer,
        message: Message,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> int:
        """Returns the queue for a message, by the blocking producer's rules, after fetching the topic's route."""
        if producer.closed:
            producer._refuse()
        if not isinstance(message, Message):
            raise sending.not_a_message(message)
        if message.topic not in self._session.client.routes:
            await self._session.client.write_route(message.topic)
        return producer._choose(message, queue_id, selector, arg)

    async def _call(self, call: Callable[..., object], *arguments: object) -> object:
        """Calls the user's code: a coroutine on the loop, any other callable in the pool."""
        if inspect.iscoroutinefunction(call):
            return await call(*arguments)
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        return await answer if inspect.isawaitable(answer) else answer


class Producer:
    """Sends messages. Created by `broker.producer(group)`. Tasks of one loop may share it."""

    def __init__(self, broker: Broker, inner: sending.Producer) -> None:
        self._broker = broker
        self._producer = inner
        self._sending = broker._session.sending

    def __repr__(self) -> str:
        return f"txstore.aio.{type(self).__name__}(group={self.group!r})"

    @property
    def group(self) -> str:
        """The name of the producer group."""
        return self._producer.group

    async def send(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> RemoteSent:
        """Stores one message, as `txstore.Producer.send`. A retry may store it twice, with the same id."""
        chosen = await self._broker._choose(self._producer, message, queue_id, selector, arg)
        return await self._sending.send(message, chosen, self.group)

    async def send_batch(self, messages: Sequence[Message], *, queue_id: int | None = None) -> Sequence[RemoteSent]:
        """Stores several messages of one topic in one queue, either all or none. Raises InvalidMessageError, and as
        `send` does."""
        if not messages:
            return []
        if queue_id is None and messages[0].message_group is None:
            chosen = [await self._broker._choose(self._producer, messages[0], None, None, None)] * len(messages)
        else:
            chosen = [await self._broker._choose(self._producer, one, queue_id, None, None) for one in messages]
        return await self._sending.send_batch(messages, chosen, self.group)

    async def close(self) -> None:
        """Leaves the group. Idempotent."""
        self._producer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class TransactionProducer(Producer):
    """Sends transactional messages and answers the checks of its group, even while no task awaits it."""

    _producer: sending.TransactionProducer

    def __init__(self, broker: Broker, inner: sending.TransactionProducer) -> None:
        super().__init__(broker, inner)

    def add_checker(
        self, checker: AnyChecker[MaybeAsyncState], *, topic: str | None = None, tags: str | None = None
    ) -> None:
        """Binds a checker, as `txstore.TransactionProducer.add_checker`; it may be a coroutine function."""
        # The client awaits the coroutine of a check, so the inner producer may have such a checker, too.
        self._producer.add_checker(cast(AnyChecker[LocalTransactionState], checker), topic=topic, tags=tags)

    async def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        executer: AnyExecuter[MaybeAsyncState] | None = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
    ) -> TransactionSendResult:
        """Stores a half message, runs the local transaction, and commits or rolls back as it returned.

        As `txstore.TransactionProducer.send_in_transaction`. A cancellation while the local transaction runs leaves it
        UNKNOWN, and a check settles it.
        """
        execute = self._producer._executer(executer)
        local = await self._begin(message, queue_id, selector, arg)
        try:
            try:
                local.answered(await self._broker._call(execute, local.message, arg))
            except Exception as raised:
                local.raised(raised)
            await self._finish(local)
        finally:
            self._producer._ended(local)
        return local.result()

    @overload
    def transaction(
        self,
        message: Message,
        *,
        session: None = ...,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "Transaction": ...

    @overload
    def transaction(
        self,
        message: Message,
        *,
        session: AsyncSession,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> AbstractAsyncContextManager[sending.Transaction]: ...

    def transaction(
        self,
        message: Message,
        *,
        session: AsyncSession | None = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> "Transaction | AbstractAsyncContextManager[sending.Transaction]":
        """`async with producer.transaction(message) as tx`: entering stores the half message, leaving commits it.

        An exception or a cancellation inside leaves the transaction UNKNOWN, and a check decides. `session` is an async
        session on the producer's `database`; it joins the database's transaction and the message, as in
        `txstore.TransactionProducer.transaction`. Raises InvalidOptionError for a session that is not async.
        """
        if session is None and self._producer._database is None:
            return Transaction(self, message, queue_id, selector, arg)
        given: Any = session
        block: object = self._producer.transaction(
            message, session=given, queue_id=queue_id, selector=selector, arg=arg
        )
        if not isinstance(block, AbstractAsyncContextManager):
            raise InvalidOptionError(
                f"session {type(session).__name__} is not async and would block the loop\n"
                "hint: an async session or connection, or txstore.connect in a thread",
                option="session",
            )
        return block

    async def clean_database(self, before: datetime) -> None:
        """Removes old rows, as `txstore.TransactionProducer.clean_database`, in a thread."""
        await asyncio.to_thread(self._producer.clean_database, before)

    async def _begin(
        self, message: Message, queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> LocalTransaction[RemoteSent]:
        """Stores the half message and returns its local transaction."""
        if isinstance(message, Message):
            message = without_delay(message, self.group, stacklevel=3)
        chosen = await self._broker._choose(self._producer, message, queue_id, selector, arg)
        return self._producer._began(await self._sending.prepare(message, chosen, self.group), message)

    async def _finish(self, local: LocalTransaction[RemoteSent]) -> None:
        """Ends the transaction as its local transaction answered. A failure is logged, and a check settles it."""
        if local.wanted is LocalTransactionState.UNKNOWN:
            return
        try:
            await self._sending.end(local.half, local.wanted, self.group)
        except TxStoreError as error:
            local.end_failed(error)
        else:
            local.state = local.wanted


class Transaction(TransactionBlock[RemoteSent]):
    """A transaction as a block, as `txstore.Transaction`: `async with producer.transaction(message) as tx`."""

    def __init__(
        self,
        producer: TransactionProducer,
        message: Message,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> None:
        super().__init__(message)
        self._producer = producer
        self._route = (queue_id, selector, arg)

    async def commit(self) -> None:
        """Commits now. Idempotent. Raises AlreadyEndedError if it was rolled back."""
        await self._decide(LocalTransactionState.COMMIT)

    async def rollback(self) -> None:
        """Rolls back now. Idempotent. Raises AlreadyEndedError if it was committed."""
        await self._decide(LocalTransactionState.ROLLBACK)

    async def __aenter__(self) -> Self:
        self._must_not_have_begun()
        self._local = await self._producer._begin(self._message, *self._route)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wanted = self._still_to_tell(error)
        try:
            if wanted is not LocalTransactionState.UNKNOWN:
                await self._decide(wanted)
        except self.CONTRADICTIONS:
            raise
        except TxStoreError as failed:
            self._begun.end_failed(failed)
        finally:
            self._producer._producer._ended(self._begun)

    async def _decide(self, state: LocalTransactionState) -> None:
        local = self._begun
        local.wanted = state
        await self._producer._sending.end(local.half, state, self._producer.group)
        local.state = state


class Consumer:
    """Reads a topic for a group. Used by one task.

    `async with broker.consumer(group, topic) as consumer`, then `async for`. As in `txstore.Consumer`, asking for the
    next message acknowledges the last one, and leaving the block normally acknowledges the current one. After an
    exception, a cancellation, or a `break` out of the loop it is not acknowledged and will be delivered again.
    """

    def __init__(self, make: Callable[[], blocking.Consumer], name: str) -> None:
        self._make = make
        # One thread, because its calls wait for brokers and must keep the order in which they were made.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._opened: blocking.Consumer | None = None

    async def __aenter__(self) -> Self:
        self._opened = await self._in_thread(self._make)
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
        """The topic that it reads."""
        return self._consumer.topic

    @property
    def queue_ids(self) -> tuple[int, ...]:
        """The queues of its topic that are assigned to it now, sorted."""
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
            result = handler(message)
            if not inspect.isawaitable(result):
                return result
            return asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()

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


async def _awaited(result: Awaitable[T]) -> T:
    return await result
