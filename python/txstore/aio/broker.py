"""What brokers for asyncio have in common: producers and consumers, for one event loop.

In:     a blocking broker, and the calls that store messages on it.
Out:    producers and consumers with coroutines.
Always: used on the loop on which it was opened.
Not here: how messages are stored (`embedded`, `remote`).
"""

import abc
import asyncio
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from txstore import consumer as blocking
from txstore.aio.calls import Calls
from txstore.aio.consumer import Consumer
from txstore.aio.producer import LoopProducer, Producer, TransactionProducer
from txstore.consumer import Topics
from txstore.errors import InvalidOptionError, StoreClosedError
from txstore.interface import BrokerInterface, EndedTransaction
from txstore.listener import AnyChecker, AnyListener, MaybeAsyncState
from txstore.message import ConsumeFromWhere, LocalTransactionState, MessageModel, SentMessage
from txstore.producer import LocalDatabase
from txstore.producer import producer as sending
from txstore.producer.outbox import OutboxDatabase, Outboxes
from txstore.selector import Sql

__all__ = ["Broker"]

_ProducerT = TypeVar("_ProducerT")


class Broker(abc.ABC):
    """A broker for one event loop, open inside `async with`.

    `txstore.aio.open` returns one for a store in this process, `txstore.aio.connect` one for another process. Annotate
    with it the code that works with both.
    """

    def __init__(self) -> None:
        self._entered = False
        self._calls: Calls | None = None

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidOptionError(f"{self!r} was already opened\nhint: call txstore.aio.open or connect again")
        self._entered = True
        try:
            self._calls = await self._open(asyncio.get_running_loop())
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """Whether it was closed."""

    async def close(self) -> None:
        """Waits for running checks, then closes producers, consumers and the broker. Idempotent.

        If it is cancelled, closing continues.
        """
        if self._calls is not None:
            self._calls.must_be_on_loop()
            await self._close(self._calls)

    @overload
    def producer(self, group: str) -> Producer: ...
    @overload
    def producer(self, group: str, *, database: OutboxDatabase[object, _ProducerT]) -> _ProducerT: ...
    def producer(
        self, group: str, *, database: OutboxDatabase[object, _ProducerT] | None = None
    ) -> Producer | _ProducerT:
        """Creates a producer of plain messages. With a `database`, it sends them within the user's own transaction.

        Raises InvalidNameError, StoreClosedError, ReadOnlyError. A broker in another process is asked which log it has;
        if it is away, the first `send` raises BrokerUnreachableError or BrokerTimeoutError.
        """
        producer = Producer(self._opened, sending.Producer(self._writable(), group))
        if database is None:
            return producer
        return database.async_outbox_producer(producer.member, producer, self._outboxes())

    def transaction_producer(
        self,
        group: str,
        listener: AnyListener[MaybeAsyncState] | None = None,
        *,
        check_listener: AnyChecker[MaybeAsyncState] | None = None,
        database: LocalDatabase | None = None,
    ) -> TransactionProducer:
        """Creates a producer of transactional messages. It answers checks until it is closed.

        The listener's methods may be coroutines, which run on the broker's loop. `database`, a
        `txstore.database.Database`, replaces the listeners and answers checks from its rows. Raises InvalidNameError,
        InvalidOptionError, StoreClosedError, ReadOnlyError.
        """
        calls = self._opened
        inner = LoopProducer(
            calls.loop, self._writable(), group, listener, check_listener=check_listener, database=database
        )
        return TransactionProducer(calls, inner)

    def consumer(
        self,
        group: str,
        topic: Topics,
        tags: str | Sql | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
    ) -> Consumer:
        """Creates a consumer: `async with broker.consumer(group, topic) as consumer`. Arguments as for
        `txstore.EmbeddedBroker.consumer`.

        Entering raises InvalidNameError, InvalidOptionError, and the errors of requests to a broker.
        """
        calls, create = self._opened, self._consumers()

        def make() -> blocking.Consumer:
            return create(
                group,
                topic,
                tags,
                start=start,
                message_model=message_model,
                instance_name=instance_name,
                max_reconsume_times=max_reconsume_times,
            )

        return Consumer(make, f"txstore-{group}", calls.must_be_on_loop)

    @abc.abstractmethod
    async def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndedTransaction:
        """Commits or rolls back a transaction, as `txstore.EmbeddedBroker.end_transaction` does."""

    @property
    def _opened(self) -> Calls:
        """The calls of an open broker. Raises StoreClosedError before it is opened, InvalidOptionError on another
        loop."""
        if self._calls is None:
            raise StoreClosedError(f"{self!r} is not open yet\nhint: use it inside `async with`")
        self._calls.must_be_on_loop()
        return self._calls

    @abc.abstractmethod
    async def _open(self, loop: asyncio.AbstractEventLoop) -> Calls: ...

    @abc.abstractmethod
    async def _close(self, calls: Calls) -> None: ...

    @abc.abstractmethod
    def _writable(self) -> BrokerInterface:
        """Returns the blocking broker, for a new producer. Raises StoreClosedError, ReadOnlyError."""

    @abc.abstractmethod
    def _outboxes(self) -> Outboxes:
        """Returns the forwarders of databases whose rows are messages."""

    @property
    @abc.abstractmethod
    def _blocking_broker(self) -> Any:
        """The blocking broker, for calls in other threads. Raises StoreClosedError."""

    @abc.abstractmethod
    def _consumers(self) -> Callable[..., blocking.Consumer]:
        """Returns the blocking broker's call that creates consumers. Raises StoreClosedError."""
