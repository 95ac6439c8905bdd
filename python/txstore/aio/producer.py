"""Producers for asyncio: the rules of the blocking producers, with `await`.

In:     messages and the user's callbacks, which may be coroutines.
Out:    where each message was stored, and how its transaction ended.
Always: a half message is stored before its local transaction runs. A transaction whose local transaction was cancelled
        is left to a check.
Not here: storing and ending (`embedded`, `remote`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, cast, overload

from txstore.aio.calls import Calls
from txstore.aio.user_calls import call_on
from txstore.errors import InvalidOptionError, TxStoreError
from txstore.interface import BrokerInterface
from txstore.listener import AnyChecker, AnyExecuter, AnyListener, Checker, MaybeAsyncState
from txstore.message import Half, LocalTransactionState, Message, SentMessage, TransactionSendResult
from txstore.producer import AsyncSession, LocalDatabase, QueueSelector
from txstore.producer import producer as sending
from txstore.producer.local_transaction import LocalTransaction, TransactionBlock, without_delay

__all__ = ["LoopProducer", "Producer", "Transaction", "TransactionProducer"]


class LoopProducer(sending.TransactionProducer):
    """A blocking producer whose checkers may be coroutines. They run on `loop` while a thread of checks waits."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: BrokerInterface,
        group: str,
        listener: AnyListener[MaybeAsyncState] | None,
        *,
        check_listener: AnyChecker[MaybeAsyncState] | None,
        database: LocalDatabase | None,
    ) -> None:
        self._loop = loop  # First, because registering may begin a check.
        super().__init__(broker, group, listener, check_listener=check_listener, database=database)

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """Returns the checker, as one that returns when its coroutine has."""
        checker = super().checker_for(topic, tag)
        return None if checker is None else partial(call_on, self._loop, checker)


class Producer:
    """Sends messages. Created by `broker.producer(group)`. Tasks of one loop may share it."""

    def __init__(self, calls: Calls, inner: sending.Producer) -> None:
        self._calls = calls
        self._producer = inner

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
    ) -> SentMessage:
        """Stores one message, as `txstore.Producer.send`. If it is cancelled, the message may be stored all the same.

        Over a connection, a retry may store it twice, with the same id.
        """
        chosen = await self._calls.choose(self._producer, message, queue_id, selector, arg)
        return await self._calls.send(message, chosen, self.group)

    async def recall(self, handle: str) -> str:
        """Recalls a message that waits for its time, as `txstore.Producer.recall`. Returns its unique id."""
        return await self._calls.recall(handle)

    async def send_batch(self, messages: Sequence[Message], *, queue_id: int | None = None) -> Sequence[SentMessage]:
        """Stores several messages, either all or none; over a connection, of one topic and in one queue.

        Raises InvalidMessageError, and as `send` does.
        """
        if not messages:
            return []
        chosen = await self._calls.choose_together(self._producer, messages, queue_id, None, None)
        return await self._calls.send_batch(messages, chosen, self.group)

    @property
    def member(self) -> sending.Producer:
        """The blocking producer that is a member of the group. For producers with a database."""
        return self._producer

    async def choose(self, message: Message, queue_id: int | None) -> int:
        """Returns the queue for a message. For producers with a database."""
        return await self._calls.choose(self._producer, message, queue_id, None, None)

    async def close(self) -> None:
        """Leaves the group. Idempotent."""
        await self._calls.close_producer(self._producer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class TransactionProducer(Producer):
    """Sends transactional messages and answers the checks of its group, even while no task awaits it."""

    _producer: sending.TransactionProducer

    def __init__(self, calls: Calls, inner: LoopProducer) -> None:
        super().__init__(calls, inner)

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
                local.answered(await self._calls.call_user(execute, local.message, arg))
            except Exception as raised:
                local.raised(raised)
            await self._finish(local)
        finally:
            self._left(local)
        return local.result()

    @overload
    def transaction(
        self,
        message: Message | Sequence[Message],
        *,
        session: None = ...,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "Transaction": ...

    @overload
    def transaction(
        self,
        message: Message | Sequence[Message],
        *,
        session: AsyncSession,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> AbstractAsyncContextManager[sending.Transaction]: ...

    def transaction(
        self,
        message: Message | Sequence[Message],
        *,
        session: AsyncSession | None = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> "Transaction | AbstractAsyncContextManager[sending.Transaction]":
        """`async with producer.transaction(message) as tx`: entering stores the half message, leaving commits it.

        Several messages, an exception inside: as in `txstore.TransactionProducer.transaction`. A cancellation inside
        leaves the transaction UNKNOWN, and a check decides. `session` is an async
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

    async def _begin_all(
        self, messages: Sequence[Message], queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> LocalTransaction[Half]:
        """Stores the half messages of one transaction and returns its local transaction."""
        if len(messages) == 1:
            return await self._begin(messages[0], queue_id, selector, arg)
        messages = [without_delay(message, self.group, stacklevel=3) for message in messages]
        chosen = await self._calls.choose_together(self._producer, messages, queue_id, selector, arg)
        half = await self._calls.prepare_many(messages, chosen, self.group, self._producer.number)
        return self._producer._began(half, messages[0])

    async def _begin(
        self, message: Message, queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> LocalTransaction[Half]:
        """Stores the half message and returns its local transaction."""
        if isinstance(message, Message):
            message = without_delay(message, self.group, stacklevel=3)
        chosen = await self._calls.choose(self._producer, message, queue_id, selector, arg)
        return self._producer._began(
            await self._calls.prepare(message, chosen, self.group, self._producer.number), message
        )

    async def _finish(self, local: LocalTransaction[Half]) -> None:
        """Ends the transaction as its local transaction answered. A failure is logged, and a check settles it."""
        if local.wanted is LocalTransactionState.UNKNOWN:
            return
        try:
            await self._calls.end(local.half, local.wanted, self.group)
        except TxStoreError as error:
            local.end_failed(error)
        else:
            local.state = local.wanted

    def _left(self, local: LocalTransaction[Half]) -> None:
        """Notes that a local transaction no longer runs here. Unless it was ended, it will be checked."""
        if local.state is LocalTransactionState.UNKNOWN:
            self._calls.local_transaction_ended(self._producer, local)
        else:
            self._producer._forget(local)


class Transaction(TransactionBlock[Half]):
    """A transaction as a block, as `txstore.Transaction`: `async with producer.transaction(message) as tx`."""

    def __init__(
        self,
        producer: TransactionProducer,
        message: Message | Sequence[Message],
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
        self._local = await self._producer._begin_all(self._messages, *self._route)
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
            self._producer._left(self._begun)

    async def _decide(self, state: LocalTransactionState) -> None:
        local = self._begun
        local.wanted = state
        await self._producer._calls.end(local.half, state, self._producer.group)
        local.state = state
