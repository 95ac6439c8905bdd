"""Outbox producer: sends messages within the user's own database transaction.

In:     messages, and the session or connection whose transaction they belong to.
Out:    one row for each message, and a receipt.
Always: nothing but an INSERT happens in the user's transaction, and nothing here commits.
Not here: how rows become messages of the log (`forwarder`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, overload

from txstore._native import OutboxRow, is_system_topic
from txstore.coroutines import run_now
from txstore.database.outbox.committed import append_early
from txstore.database.outbox.direct import insert_directly
from txstore.database.outbox.durability import warn_unless_durable
from txstore.database.outbox.forwarder import Forwarder, RowDatabase
from txstore.database.outbox.packet import PACKET_BYTES, must_fit_packet
from txstore.database.outbox.waiting import OutboxStatus
from txstore.database.rows import TableError, table_is_missing
from txstore.database.session import Handle, handle_of
from txstore.database.statements import INSERT_OUTBOX, INSERT_OUTBOX_GROUP
from txstore.errors import InvalidNameError, InvalidOptionError, StoreClosedError
from txstore.message import Message, SentMessage
from txstore.producer import Producer
from txstore.producer.outbox import AsyncProducer, MessageLimits
from txstore.producer.producer import not_a_message

__all__ = ["AsyncOutboxProducer", "AsyncSession", "BlockingSession", "OutboxProducer", "OutboxReceipt"]


_NewRow: TypeAlias = tuple[OutboxRow, int | None]
"""A row to insert, and the queue of its message if it is chosen already."""


class BlockingSession(Protocol):
    """The methods that connections and sessions of all blocking drivers have."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class AsyncSession(Protocol):
    """The method that connections and sessions of all async drivers have."""

    @property
    def execute(self) -> Callable[..., Awaitable[Any]]: ...


@dataclass(frozen=True, slots=True)
class OutboxReceipt:
    """What is known of a message sent within a transaction. Its queue and offset do not exist before the commit."""

    message_id: str
    """The unique id (32 hex digits) that the message has in the log if the transaction commits."""
    topic: str
    """The topic."""


class _Rows:
    """The common part of both producers."""

    _asynchronous: bool
    _hint: str

    def __init__(self, producer: Producer, database: RowDatabase, limits: MessageLimits) -> None:
        self._producer = producer
        self._group = producer.group
        self._database = database
        self._limits = limits

    def __repr__(self) -> str:
        return f"{type(self).__name__}(group={self.group!r}, database={self._database!r})"

    @property
    def group(self) -> str:
        """The name of the producer group."""
        return self._group

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._producer.closed

    def _check(self, message: Message) -> None:
        """Raises an error for a message that can never be sent, before anything is written."""
        if self._producer.closed:
            raise StoreClosedError(f"the producer of group {self.group} is closed")
        if not isinstance(message, Message):
            raise not_a_message(message)
        if is_system_topic(message.topic):
            raise InvalidNameError(f"topic {message.topic} is the system's: clients neither send to it nor read it")
        self._limits.check(message)

    async def _insert_all(self, forwarder: Forwarder, session: object, rows: Sequence[_NewRow]) -> None:
        handle = handle_of(session)
        if handle.asynchronous is not self._asynchronous:
            raise InvalidOptionError(f"{self._other_kind(session)}\nhint: {self._hint}", option="session")
        await handle.join()
        if forwarder.checks_durability:
            forwarder.checks_durability = False
            await warn_unless_durable(handle, forwarder.name)
        for row, queue_id in rows:
            await self._insert(forwarder, handle, row, queue_id)

    async def _insert(self, forwarder: Forwarder, handle: Handle, row: OutboxRow, queue_id: int | None) -> None:
        identity, row_id, group_seq = forwarder.database.identity(), forwarder.new_id(), 0
        values = {"id": row_id, "destination": forwarder.destination, "message": row.data, "identity": identity}
        if len(row.data) > PACKET_BYTES:
            await must_fit_packet(handle, row.data)
        try:
            if row.message_group is None:
                written = (await handle.run(INSERT_OUTBOX, **values))[0] == 1
            else:
                _, group_seq = await handle.run(INSERT_OUTBOX_GROUP, message_group=row.message_group, **values)
                written = group_seq is not None
        except Exception as error:
            if table_is_missing(error):
                raise TableError.elsewhere(forwarder.database.forget_identity()) from error
            raise
        if not written:
            raise TableError.elsewhere(forwarder.database.forget_identity())
        # A message of a group waits until all earlier rows of the group are in the log.
        early_queue = queue_id if group_seq <= 1 else None
        session = handle.orm_session()
        if session is not None:
            _early().note(*session, forwarder, row_id, row, early_queue)
        has_hook = session is not None or handle.on_commit(partial(append_early, forwarder, row_id, row, early_queue))
        for statement in forwarder.inserted(row_id, row, group_seq, queue_id, has_hook=has_hook):
            await handle.execute(statement)

    def _other_kind(self, session: object) -> str:
        name = type(session).__name__
        if self._asynchronous:
            return f"the session blocks ({name}), and this producer is async"
        return f"the session is async ({name}), and this producer blocks"


class OutboxProducer(_Rows):
    """Sends messages that become visible if, and only if, the user's own database transaction commits. Thread-safe.

    Created by `broker.producer(group, database=Database(…))`.
    """

    _asynchronous = False
    _hint = "a blocking session, such as sqlalchemy.orm.Session; txstore.aio takes async ones"

    def __init__(self, producer: Producer, forwarder: Forwarder, limits: MessageLimits) -> None:
        super().__init__(producer, forwarder.database, limits)
        self._forwarder = forwarder

    @overload
    def send(self, message: Message, *, session: BlockingSession, queue_id: int | None = None) -> OutboxReceipt: ...
    @overload
    def send(self, message: Message, *, session: None, queue_id: int | None = None) -> SentMessage: ...
    def send(
        self, message: Message, *, session: BlockingSession | None, queue_id: int | None = None
    ) -> OutboxReceipt | SentMessage:
        """Inserts the message as a row of the session's transaction. With None instead of a session, sends it at once.

        The message becomes visible after the commit, and never if the transaction, or a savepoint around this call,
        rolls back. Raises InvalidOptionError for a session that cannot be used, InvalidNameError for the topic or
        queue, InvalidMessageError, TableError, StoreClosedError, and what the driver raises.
        """
        if session is None:
            return self._producer.send(message, queue_id=queue_id)
        row = self._chosen(message, queue_id)
        if not insert_directly(self._forwarder, session, *row):
            self._insert_each(session, (row,))
        return _receipt(row)

    @overload
    def send_batch(
        self, messages: Sequence[Message], *, session: BlockingSession, queue_id: int | None = None
    ) -> list[OutboxReceipt]: ...
    @overload
    def send_batch(
        self, messages: Sequence[Message], *, session: None, queue_id: int | None = None
    ) -> Sequence[SentMessage]: ...
    def send_batch(
        self, messages: Sequence[Message], *, session: BlockingSession | None, queue_id: int | None = None
    ) -> list[OutboxReceipt] | Sequence[SentMessage]:
        """Sends several messages as `send` does."""
        if session is None:
            return self._producer.send_batch(messages, queue_id=queue_id)
        rows = [self._chosen(message, queue_id) for message in messages]
        self._insert_each(session, rows)
        return [_receipt(row) for row in rows]

    def _insert_each(self, session: object, rows: Sequence[_NewRow]) -> None:
        for number, (row, queue_id) in enumerate(rows):
            if not insert_directly(self._forwarder, session, row, queue_id):
                self._database.identity()
                run_now(self._insert_all(self._forwarder, session, rows[number:]))
                return

    def _chosen(self, message: Message, queue_id: int | None) -> _NewRow:
        self._check(message)
        later = self._forwarder.chooses_later
        chosen = None if later else self._producer._choose(message, queue_id, None, None)
        return OutboxRow.of(message, self._group, queue_id), chosen

    def outbox_status(self) -> OutboxStatus:
        """Returns how many rows wait for this producer's log, of all processes, and how old the oldest is.

        Counts rows on a connection of its own, so call it every few seconds at most. Raises TableError, and what the
        driver raises.
        """
        return self._forwarder.status()

    def close(self) -> None:
        """Leaves the group. Rows that are committed are still forwarded. Idempotent."""
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncOutboxProducer(_Rows):
    """Sends messages that become visible if, and only if, the user's own database transaction commits. Tasks of one
    loop may share it.

    Created by `txstore.aio`'s `broker.producer(group, database=Database(…))`.
    """

    _asynchronous = True
    _hint = "an async session, such as sqlalchemy.ext.asyncio.AsyncSession; txstore.open takes blocking ones"

    def __init__(
        self,
        producer: Producer,
        database: RowDatabase,
        opened: Forwarder | None,
        open_forwarder: Callable[[], Forwarder],
        limits: MessageLimits,
        at_once: AsyncProducer,
    ) -> None:
        """`opened` is None if `open_forwarder` waits for another process. It is then called in a thread."""
        super().__init__(producer, database, limits)
        self._open_forwarder = open_forwarder
        self._at_once = at_once
        self._opened = opened
        self._opening: asyncio.Future[Forwarder] | None = None
        if opened is None:
            self._open()

    @overload
    async def send(self, message: Message, *, session: AsyncSession, queue_id: int | None = None) -> OutboxReceipt: ...
    @overload
    async def send(self, message: Message, *, session: None, queue_id: int | None = None) -> SentMessage: ...
    async def send(
        self, message: Message, *, session: AsyncSession | None, queue_id: int | None = None
    ) -> OutboxReceipt | SentMessage:
        """Inserts the message as a row of the session's transaction, as `OutboxProducer.send` does.

        If it is cancelled, the row may be in the transaction; roll it back.
        """
        if session is None:
            return await self._at_once.send(message, queue_id=queue_id)
        forwarder = await self._ready()
        row = await self._chosen(forwarder, message, queue_id)
        await self._insert_all(forwarder, session, (row,))
        return _receipt(row)

    @overload
    async def send_batch(
        self, messages: Sequence[Message], *, session: AsyncSession, queue_id: int | None = None
    ) -> list[OutboxReceipt]: ...
    @overload
    async def send_batch(
        self, messages: Sequence[Message], *, session: None, queue_id: int | None = None
    ) -> Sequence[SentMessage]: ...
    async def send_batch(
        self, messages: Sequence[Message], *, session: AsyncSession | None, queue_id: int | None = None
    ) -> list[OutboxReceipt] | Sequence[SentMessage]:
        """Sends several messages as `send` does."""
        if session is None:
            return await self._at_once.send_batch(messages, queue_id=queue_id)
        forwarder = await self._ready()
        rows = [await self._chosen(forwarder, message, queue_id) for message in messages]
        await self._insert_all(forwarder, session, rows)
        return [_receipt(row) for row in rows]

    async def outbox_status(self) -> OutboxStatus:
        """Returns what `OutboxProducer.outbox_status` returns. Counts in a thread."""
        return await asyncio.to_thread((await self._ready()).status)

    async def close(self) -> None:
        """Leaves the group. Rows that are committed are still forwarded. Idempotent."""
        await self._at_once.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _chosen(self, forwarder: Forwarder, message: Message, queue_id: int | None) -> _NewRow:
        self._check(message)
        chosen = None if forwarder.chooses_later else await self._at_once.choose(message, queue_id)
        return OutboxRow.of(message, self._group, queue_id), chosen

    async def _ready(self) -> Forwarder:
        """Returns the forwarder when it has begun, and the database's name is known. Waits for both in a thread."""
        if self._opened is None:
            opening = self._opening or self._open()
            try:
                self._opened = await asyncio.shield(opening)
            finally:
                if opening.done():
                    self._opening = None
        if not self._database.is_identified:
            await asyncio.to_thread(self._database.identity)
        return self._opened

    def _open(self) -> asyncio.Future[Forwarder]:
        """Begins to forward what other processes left. The next `send` raises what went wrong, or tries again."""
        self._opening = asyncio.get_running_loop().run_in_executor(None, self._open_forwarder)
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._opening


@cache
def _early() -> Any:
    """Imports the hooks of SQLAlchemy, which only its sessions need."""
    from txstore.database.outbox import early

    return early


def _receipt(row: _NewRow) -> OutboxReceipt:
    return OutboxReceipt(row[0].message_id, row[0].topic)
