"""A broker in another process, for asyncio.

In:     the arguments of `txstore.connect`, on the running loop.
Out:    coroutines over the same client as the blocking interface.
Always: a cancelled call takes no effect: its transaction is left to a check, its message is delivered again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Unpack

from txstore import consumer as blocking
from txstore.aio.broker import Broker
from txstore.aio.calls import Calls
from txstore.client.administration import Administration
from txstore.client.broker import EMBEDDED_ONLY, LIMITS, Session
from txstore.client.broker import RemoteBroker as BlockingBroker
from txstore.client.options import ConnectConfig, ConnectOptions
from txstore.client.sending import RemoteEnd, RemoteSent
from txstore.errors import EmbeddedOnlyError, StoreClosedError
from txstore.interface import BrokerInterface
from txstore.message import Half, LocalTransactionState, Message, SentMessage
from txstore.producer import producer as sending
from txstore.producer.local_transaction import LocalTransaction
from txstore.producer.outbox import MessageLimits, Outboxes

__all__ = ["RemoteBroker", "connect"]


def connect(address: str, *, config: ConnectConfig | None = None, **options: Unpack[ConnectOptions]) -> "RemoteBroker":
    """Connects to a remote broker: `async with txstore.aio.connect("127.0.0.1:9876") as broker`.

    Takes the arguments of `txstore.connect`.

    Raises InvalidOptionError; entering raises BrokerUnreachableError, BrokerTimeoutError.
    """
    return RemoteBroker(Session(address, ConnectConfig.from_options(options, config)))


class RemoteBroker(Broker, Administration):
    """A broker in another process, for one event loop. Created by `txstore.aio.connect`, open inside `async with`.

    The administrative calls are those of an embedded broker, as coroutines; with accounts, they need an administrator.
    """

    def __init__(self, session: Session, limits: MessageLimits = LIMITS) -> None:
        Broker.__init__(self)
        self._session = session
        self._limits = limits
        Administration.__init__(self, self._session.client)
        self._blocking: BlockingBroker | None = None

    def __repr__(self) -> str:
        return f"txstore.aio.RemoteBroker({self.address!r})"

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
        return self._blocking is not None and self._blocking.closed

    async def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> RemoteEnd:
        """Commits or rolls back a transaction, as `txstore.RemoteBroker.end_transaction` does."""
        return await self._session.end(transaction, state, producer_group)

    def __getattr__(self, name: str) -> NoReturn:
        if name in EMBEDDED_ONLY:
            raise EmbeddedOnlyError(f"a remote broker does not offer {name}\nhint: {EMBEDDED_ONLY[name]}")
        if hasattr(BlockingBroker, name):
            raise EmbeddedOnlyError(f"the asyncio interface does not offer {name}\nhint: use txstore.connect")
        raise AttributeError(f"txstore.aio.RemoteBroker has no attribute {name}")

    async def _administer(self, name: str, **arguments: Any) -> Any:
        if self._connected.closed:
            raise StoreClosedError(f"the connection to {self.address} was closed\nhint: txstore.aio.connect again")
        return await super()._administer(name, **arguments)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Calls:
        await self._session.client.start()
        self._blocking = BlockingBroker(self._session, loop, lambda: None, self._limits)
        return _RemoteCalls(self._session, loop)

    async def _close(self, calls: Calls) -> None:
        try:
            await asyncio.to_thread(self._connected.close)
        finally:
            calls.close()

    def _writable(self) -> BrokerInterface:
        return self._connected

    def _outboxes(self) -> Outboxes:
        return self._connected.outboxes

    @property
    def _blocking_broker(self) -> BlockingBroker:
        return self._connected

    def _consumers(self) -> Callable[..., blocking.Consumer]:
        return self._connected.consumer

    @property
    def _connected(self) -> BlockingBroker:
        if self._blocking is None:
            raise StoreClosedError(
                f"the connection to {self.address} is not open yet\nhint: use it inside `async with`"
            )
        return self._blocking


class _RemoteCalls(Calls):
    """The calls of producers, over a connection."""

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, session.client.options.check_threads)
        self._client = session.client
        self._sending = session.sending
        self._caller = session.caller

    def knows_topic(self, producer: sending.Producer, topic: str) -> bool:
        route = self._client.routes.get(topic)
        return route is not None and bool(route.write)

    async def find_topic(self, producer: sending.Producer, topic: str) -> None:
        await self._client.write_route(topic)

    async def send(self, message: Message, queue_id: int, group: str) -> RemoteSent:
        return await self._sending.send(message, queue_id, group, self._caller)

    async def send_batch(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str
    ) -> Sequence[RemoteSent]:
        return await self._sending.send_batch(messages, queue_ids, group, self._caller)

    async def recall(self, handle: str) -> str:
        return await self._sending.recall(handle, self._caller)

    async def prepare(self, message: Message, queue_id: int, group: str, owner: int) -> RemoteSent:
        return await self._sending.prepare(message, queue_id, group, self._caller)

    async def prepare_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int
    ) -> RemoteSent:
        return await self._sending.prepare_many(messages, queue_ids, group, self._caller)

    async def end(self, half: Half, state: LocalTransactionState, group: str) -> RemoteEnd:
        return await self._sending.end(half, state, group, self._caller)

    def local_transaction_ended(self, producer: sending.TransactionProducer, local: LocalTransaction[Half]) -> None:
        producer._ended(local)
