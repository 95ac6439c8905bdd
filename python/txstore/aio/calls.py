"""The calls that producers for asyncio make on their broker.

In:     messages, half messages, ends, and the user's callbacks.
Out:    where each message was stored, and how its transaction ended.
Always: used on one event loop. Nothing blocks it.
Not here: how a kind of broker stores and ends (`embedded`, `remote`).
"""

import abc
import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from txstore.errors import InvalidOptionError
from txstore.interface import EndedTransaction
from txstore.message import Half, LocalTransactionState, Message, SentMessage
from txstore.producer import QueueSelector
from txstore.producer import producer as sending
from txstore.producer.local_transaction import LocalTransaction

__all__ = ["Calls"]


class Calls(abc.ABC):
    """The calls on a broker that was opened on `loop`. Its coroutines may raise a TxStoreError."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener_threads: int) -> None:
        self._loop = loop
        self._listeners = ThreadPoolExecutor(listener_threads, thread_name_prefix="txstore-listener")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the broker was opened."""
        return self._loop

    def must_be_on_loop(self) -> None:
        """Raises InvalidOptionError on another loop than the broker's."""
        if asyncio._get_running_loop() is not self._loop:
            raise InvalidOptionError(
                "the broker was opened on another event loop than the one that runs here\n"
                "hint: asyncio.run_coroutine_threadsafe(coroutine, loop) with the loop that opened it",
                option="loop",
            )

    async def choose(
        self,
        producer: sending.Producer,
        message: Message,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> int:
        """Returns the queue for a message, by the blocking producer's rules, after its topic is known."""
        await self._find_topic_of(producer, message)
        return producer._choose(message, queue_id, selector, arg)

    async def choose_together(
        self,
        producer: sending.Producer,
        messages: Sequence[Message],
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> list[int]:
        """Returns the queues for messages that are stored together, likewise."""
        for message in messages:
            await self._find_topic_of(producer, message)
        return producer._choose_together(messages, queue_id, selector, arg)

    async def _find_topic_of(self, producer: sending.Producer, message: Message) -> None:
        self.must_be_on_loop()
        if producer.closed:
            producer._refuse()
        if not isinstance(message, Message):
            raise sending.not_a_message(message)
        if not self.knows_topic(producer, message.topic):
            await self.find_topic(producer, message.topic)

    async def call_user(self, call: Callable[..., object], *arguments: object) -> object:
        """Calls the user's code: a coroutine on the loop, any other callable in the pool of listeners."""
        if inspect.iscoroutinefunction(call):
            return await call(*arguments)
        answer = await self._loop.run_in_executor(self._listeners, call, *arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def close_producer(self, producer: sending.Producer) -> None:
        """Has a producer leave its group. Idempotent."""
        producer.close()

    def close(self) -> None:
        """Releases the threads. Idempotent."""
        self._listeners.shutdown(wait=False)

    @abc.abstractmethod
    def knows_topic(self, producer: sending.Producer, topic: str) -> bool:
        """Tells whether the queues of a topic can be chosen without waiting."""

    @abc.abstractmethod
    async def find_topic(self, producer: sending.Producer, topic: str) -> None:
        """Asks for the queues of a topic, which may create it."""

    @abc.abstractmethod
    async def send(self, message: Message, queue_id: int, group: str) -> SentMessage:
        """Stores one message."""

    @abc.abstractmethod
    async def send_batch(
        self, messages: Sequence[Message], queue_ids: Sequence[int], group: str
    ) -> Sequence[SentMessage]:
        """Stores several messages, either all or none."""

    @abc.abstractmethod
    async def recall(self, handle: str) -> str:
        """Ends the wait of a message for its time. Returns its unique id."""

    @abc.abstractmethod
    async def prepare(self, message: Message, queue_id: int, group: str, owner: int) -> Half:
        """Stores a half message. If it is cancelled, the local transaction has not run and does not run."""

    @abc.abstractmethod
    async def prepare_many(self, messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int) -> Half:
        """Stores the half messages of one transaction, as `prepare` does. Returns the handle of the first."""

    @abc.abstractmethod
    async def end(self, half: Half, state: LocalTransactionState, group: str) -> EndedTransaction:
        """Commits or rolls back the transaction of a half message, for the producer group that began it."""

    @abc.abstractmethod
    def local_transaction_ended(self, producer: sending.TransactionProducer, local: LocalTransaction[Half]) -> None:
        """Starts the age of a transaction that was not ended, so that it will be checked. Never waits."""
