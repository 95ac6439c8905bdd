"""Database: holds the rows of local transactions and answers checks from them.

In:     what a connection can be opened from; messages that are checked.
Out:    answers, blocks, an inbox, cleaned tables.
Always: a row answers a check. If there is none, the check inserts "rolled back", so that a later commit of the local
        transaction fails on the key. A row that may have been cleaned does not count as one that never existed.
Not here: the block itself (`block`), SQL (`statements`), drivers (`sqlite`, `sqlalchemy`, `psycopg`).
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from txstore.config import Duration, as_timedelta, milliseconds
from txstore.coroutines import run_now
from txstore.database.block import AsyncDatabaseTransaction, DatabaseTransaction
from txstore.database.fork import inside_database
from txstore.database.inbox import Inbox
from txstore.database.outbox import (
    AsyncOutboxProducer,
    AsyncSession,
    BlockingSession,
    Forwarder,
    OutboxProducer,
    OutboxStatus,
    PendingMessage,
    Resent,
    SendsAgain,
    WaitingRow,
    change_parked,
    outbox_status,
    pending_messages,
    seen_by_others,
    send_again,
    waiting_rows,
)
from txstore.database.reconcile import MissingTransaction, ReconciledBroker, missing_transactions
from txstore.database.rows import TableError, answer, must_have_version, table_is_missing
from txstore.database.session import (
    Handle,
    handle_of,
    is_asynchronous,
    must_be_source,
    named,
    open_handle,
    with_engine,
)
from txstore.database.statements import (
    CLEAN,
    CLEAN_INBOX,
    DDL_BY_DIALECT,
    FORGET_BEFORE,
    INSERT_IDENTITY,
    MUST_KEEP_SENT,
    NEXT_GROUP,
    NEXT_TO_CLEAN,
    NEXT_TO_CLEAN_INBOX,
    SELECT_IDENTITY,
    SELECT_OUTCOME,
    Statement,
)
from txstore.errors import InvalidOptionError
from txstore.message import LocalTransactionState, Message, TransactionMessage, TransactionState
from txstore.producer import Producer, QueueSelector, TransactionProducer
from txstore.producer.outbox import AsyncProducer, Outboxes

if TYPE_CHECKING:
    import os
    import sqlite3

    from psycopg import Connection as PsycopgConnection
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session

    from txstore.aio import Broker as AsyncBroker

__all__ = ["Database"]

_T = TypeVar("_T")
_CLEAN_ROWS = 1000  # Deleted in one step, so that others get their turn.
_STATES = {
    TransactionState.COMMITTED: LocalTransactionState.COMMIT,
    TransactionState.ROLLED_BACK: LocalTransactionState.ROLLBACK,
}


class Database:
    """The database of the user's local transactions, for `broker.transaction_producer(group, database=…)`. Thread-safe.

    `source` is the path of a SQLite file, a `postgresql://` URL (psycopg), a `mysql+pymysql://` URL or another of
    SQLAlchemy for MariaDB, a SQLAlchemy `Engine` or `AsyncEngine`, or a function that returns a new connection on each
    call. Checks, cleaning and `create_table` open separate connections
    from it, not before they need them.

    `keep_sent` (seconds or a timedelta) keeps rows of sent messages for that time at least, by the database's clock, so
    that `resend` can fill a restored log again. Give it to every `Database` that forwards rows.

    Raises InvalidOptionError for any other source, for a database in memory, and for a time that is not positive.
    """

    def __init__(
        self,
        source: "str | os.PathLike[str] | Engine | AsyncEngine | "
        "Callable[[], sqlite3.Connection | PsycopgConnection[Any] | Connection | Session]",
        *,
        keep_sent: Duration | None = None,
    ) -> None:
        must_be_source(source)
        self._source: Any = with_engine(source)
        self._keep_sent_ms = None if keep_sent is None else milliseconds(as_timedelta(keep_sent, "keep_sent"))
        if self._keep_sent_ms is not None and self._keep_sent_ms < 1:
            raise InvalidOptionError(
                f"keep_sent must be positive, got {keep_sent!r}\nhint: None keeps nothing", option="keep_sent"
            )
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"Database({named(self._source)})"

    @property
    def source(self) -> Any:
        """What connections are opened from."""
        return self._source

    @property
    def keep_sent_ms(self) -> int | None:
        """How long rows of sent messages are kept, in milliseconds; None if they are deleted."""
        return self._keep_sent_ms

    # For users

    def create_table(self) -> None:
        """Creates the tables `txstore_transactions`, `txstore_inbox`, `txstore_outbox` and `txstore_sent`, unless they
        exist. Updates those of an earlier version.

        Alternatively, execute `txstore.database.DDL` (`DDL_SQLITE`, `DDL_MARIADB`) in a migration. Raises what the
        driver raises.
        """

        async def make(handle: Handle) -> None:
            await handle.begin()
            for sql in DDL_BY_DIALECT[await handle.dialect()]:
                await handle.execute(sql)
            await handle.commit()

        self._do(make, make=True)
        self.identity()

    def clean(self, before: datetime) -> int:
        """Removes rows written before a time, and returns how many.

        Afterwards, a check of a transaction that began before that time and has no row is UNKNOWN. A broker calls this
        every hour with its `file_reserved_time`, but never for rows of pending transactions. Raises InvalidOptionError
        for a time without a time zone or in the future.
        """
        if before.tzinfo is None or before > datetime.now(UTC):
            raise InvalidOptionError(f"before must have a time zone and be in the past, got {before}", option="before")
        before_ms = int(before.timestamp() * 1000)

        async def clean(handle: Handle) -> int:
            await handle.begin()
            await handle.run(FORGET_BEFORE, before_ms=before_ms)
            await handle.commit()
            deleted = await _delete(handle, NEXT_TO_CLEAN, CLEAN, before_ms=before_ms)
            group: str | None = ""
            while group := await _found(handle, NEXT_GROUP, after=group):
                deleted += await _delete(
                    handle, NEXT_TO_CLEAN_INBOX, CLEAN_INBOX, before_ms=before_ms, consumer_group=group
                )
            return deleted

        return self._do(clean)

    @overload
    def pending(self, session: AsyncSession) -> Coroutine[Any, Any, list[PendingMessage]]: ...
    @overload
    def pending(self, session: BlockingSession) -> list[PendingMessage]: ...
    def pending(self, session: object) -> list[PendingMessage] | Coroutine[Any, Any, list[PendingMessage]]:
        """Returns the messages that the session's open transaction has sent so far, in the order of sending; for tests.

        Only reads, so the test may then roll back. `await` it for an async session. Raises what `producer.send` raises
        for a session that cannot be used: InvalidOptionError, TableError, and what the driver raises.
        """
        handle = handle_of(session)
        if handle.asynchronous:
            return self._pending(handle)

        async def others() -> tuple[Set[int], Set[int]]:
            return self._do(seen_by_others)

        return run_now(pending_messages(handle, self.identity(), named(self._source), others))

    async def _pending(self, handle: Handle) -> list[PendingMessage]:
        identity = await asyncio.to_thread(self.identity)
        others = partial(asyncio.to_thread, self._do, seen_by_others)
        return await pending_messages(handle, identity, named(self._source), others)

    def outbox(self, limit: int = 100) -> list[WaitingRow]:
        """Returns at most `limit` rows of messages that were sent within a transaction and are not known to be durable
        in a log yet. Raises TableError."""

        async def read(handle: Handle) -> list[WaitingRow]:
            found: list[WaitingRow] = []
            async for one in waiting_rows(handle):
                if len(found) == limit:
                    break
                found.append(one)
            return found

        return self._on_tables(read)

    def outbox_status(self, destination: int, own: range, in_log: Set[int]) -> OutboxStatus:
        """Returns how many rows wait for a log, for `OutboxProducer.outbox_status`. Raises TableError."""
        return self._on_tables(lambda handle: outbox_status(handle, destination, own, in_log))

    def remembered_log(self, name: str) -> str | None:
        """Returns what a forwarder has kept of a remote log, for the next process. Raises TableError."""

        async def read(handle: Handle) -> str | None:
            _, found = await handle.run(SELECT_OUTCOME, transaction_id=name)
            return None if found is None else str(found)

        return self._on_tables(read)

    def retry_parked(self, message_id: str) -> WaitingRow:
        """Lets a parked row be sent again. Its process does it within a second, or the next one that opens the store.

        Raises MessageNotFoundError if no such row is parked, TableError.
        """
        return self._on_tables(lambda handle: change_parked(handle, message_id, drop=False))

    def drop_parked(self, message_id: str) -> WaitingRow:
        """Deletes a parked row, whose message is then never sent. Raises as `retry_parked` does."""
        return self._on_tables(lambda handle: change_parked(handle, message_id, drop=True))

    @overload
    def reconcile(self, broker: ReconciledBroker) -> list[MissingTransaction]: ...
    @overload
    def reconcile(self, broker: "AsyncBroker") -> Coroutine[Any, Any, list[MissingTransaction]]: ...
    def reconcile(
        self, broker: "ReconciledBroker | AsyncBroker"
    ) -> list[MissingTransaction] | Coroutine[Any, Any, list[MissingTransaction]]:
        """Returns the transactions of blocks that this database has committed and whose message is neither in the
        broker's log nor pending: a machine was lost, or a backup of its store was restored. Oldest first.

        Compares only rows that are not older than the log's first message. Changes nothing. `await` it for a broker of
        `txstore.aio`, which is asked in a thread. Raises TableError, BrokerRefusedError (RocketMQ's brokers cannot tell
        it), the errors of a broker that is away, and what the driver raises.
        """
        below = getattr(broker, "_blocking_broker", None)
        if below is not None:
            return asyncio.to_thread(self._reconcile, below)
        return self._reconcile(cast("ReconciledBroker", broker))

    def _reconcile(self, broker: ReconciledBroker) -> list[MissingTransaction]:
        return self._on_tables(lambda handle: missing_transactions(handle, broker))

    @overload
    def resend(self, broker: SendsAgain, *, other_logs: bool = False) -> Resent: ...
    @overload
    def resend(self, broker: "AsyncBroker", *, other_logs: bool = False) -> Coroutine[Any, Any, Resent]: ...
    def resend(
        self, broker: "SendsAgain | AsyncBroker", *, other_logs: bool = False
    ) -> Resent | Coroutine[Any, Any, Resent]:
        """Sends messages that were sent before, and whose rows are kept (`keep_sent`), where the broker's log does not
        have them. Can be repeated.

        With `other_logs`, also those that were sent to another log, such as one that is lost. A message that is older
        than the log's first one is not sent, if retention has removed messages. `await` it for a broker of
        `txstore.aio`. Raises InvalidOptionError for a RocketMQ broker, TableError, the errors of a broker that is away,
        and what the driver raises.
        """
        below = getattr(broker, "_blocking_broker", None)
        if below is not None:
            return asyncio.to_thread(self._resend, below, other_logs)
        return self._resend(cast("SendsAgain", broker), other_logs)

    def _resend(self, broker: SendsAgain, other_logs: bool) -> Resent:
        self._must_keep_sent()
        return self._on_tables(lambda handle: send_again(handle, broker, self, other_logs=other_logs))

    def inbox(self, consumer_group: str) -> Inbox:
        """Returns the inbox of a consumer group, which handles each message once. Raises InvalidNameError."""
        return Inbox(consumer_group)

    # For producers

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        """Answers a check from the row of the message's transaction, and inserts "rolled back" if there is none.

        Waits briefly for a local transaction in progress elsewhere. Raises what the driver raises, and TableError if
        the row may have been cleaned. For a check, each error counts as UNKNOWN.
        """
        transaction_id = message.transaction_id
        if transaction_id is None:
            raise InvalidOptionError("the message has no transaction id, so its row cannot be found")
        born = getattr(message, "born_timestamp", None)
        born_ms = int(born.timestamp() * 1000) if isinstance(born, datetime) else now_ms()
        identity = self.identity()
        outcome = self._do(lambda handle: answer(handle, transaction_id, identity, born_ms, shortly=True))
        return _STATES[outcome]

    def transaction(
        self,
        producer: TransactionProducer,
        message: Message | Sequence[Message],
        session: object,
        *,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> DatabaseTransaction | AsyncDatabaseTransaction:
        """Returns the block of `producer.transaction(message, session=session)`."""
        handle = handle_of(session)
        block = AsyncDatabaseTransaction if handle.asynchronous else DatabaseTransaction
        return block(producer, message, queue_id, selector, arg, handle, self.identity, self.forget_identity)

    def outbox_producer(self, producer: Producer, outboxes: Outboxes) -> OutboxProducer:
        """Returns the producer of `broker.producer(group, database=…)`. Raises TableError."""
        self.identity()  # Now, because later the caller's own transaction may hold a lock.
        return OutboxProducer(producer, self._forwarder(outboxes), outboxes.limits)

    def async_outbox_producer(
        self, producer: Producer, at_once: AsyncProducer, outboxes: Outboxes
    ) -> AsyncOutboxProducer:
        """Returns the producer of the same call in `txstore.aio`. Its first `send` may raise TableError."""
        open_forwarder = partial(self._forwarder, outboxes)
        opened = None if outboxes.is_remote else open_forwarder()
        return AsyncOutboxProducer(producer, self, opened, open_forwarder, outboxes.limits, at_once)

    def _forwarder(self, outboxes: Outboxes) -> Forwarder:
        forwarder = outboxes.forwarder(self, partial(Forwarder, self))
        forwarder.start()
        return forwarder

    def identity(self) -> str:
        """Returns the random name of this database, read once. Raises TableError if the tables are missing, or of
        another version."""
        if self._identity is None:
            if self._keep_sent_ms is not None:
                self._must_keep_sent()
            self._identity = self._on_tables(_identify)
        return self._identity

    def _must_keep_sent(self) -> None:
        """Raises TableError if there is no table of sent rows: it is newer than the others."""

        async def look(handle: Handle) -> None:
            await handle.run(MUST_KEEP_SENT)

        try:
            self._do(look)
        except Exception as error:
            if table_is_missing(error):
                raise TableError.missing(named(self._source), "txstore_sent") from error
            raise

    def _on_tables(self, work: Callable[[Handle], Coroutine[Any, Any, _T]]) -> _T:
        """Runs `work` on a new connection. Raises TableError if a table is missing or has another version."""

        async def checked(handle: Handle) -> _T:
            await must_have_version(handle, named(self._source))
            return await work(handle)

        try:
            return self._do(checked)
        except Exception as error:
            if table_is_missing(error):
                raise TableError.missing(named(self._source)) from error
            raise

    @property
    def is_identified(self) -> bool:
        """Whether `identity` returns without reading."""
        return self._identity is not None

    def forget_identity(self) -> str:
        """Makes `identity` read again the next time; returns a description of this database."""
        self._identity = None
        return named(self._source)

    # Inside

    def _do(self, work: Callable[[Handle], Coroutine[Any, Any, _T]], *, make: bool = False) -> _T:
        """Runs `work` on a new connection, in this thread or, if it needs an event loop, in a new one."""

        async def opened() -> _T:
            with inside_database():
                handle = await open_handle(self._source, make=make)
                try:
                    return await work(handle)
                finally:
                    await handle.close()

        if not is_asynchronous(self._source):
            return run_now(opened())
        found: list[_T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(asyncio.run(opened()))
            except BaseException as error:
                failed.append(error)

        # A separate thread, because the caller's may have a running loop.
        thread = threading.Thread(target=run, name="txstore-database", daemon=True)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return found[0]


async def _identify(handle: Handle) -> str:
    """Reads the database's name, and creates it if a migration made the table."""
    known: str | None
    _, known = await handle.run(SELECT_IDENTITY)  # Without a lock, because the caller may have an open transaction.
    await handle.rollback()
    if known is None:
        await handle.begin()
        await handle.run(INSERT_IDENTITY, identity=uuid.uuid4().hex)
        await handle.commit()
        await handle.begin()
        _, known = await handle.run(SELECT_IDENTITY)
    await handle.rollback()
    assert known is not None
    return known


async def _delete(handle: Handle, find: Statement, delete: Statement, **which: object) -> int:
    """Deletes in steps along the key. The rows in between are only read, which blocks nobody."""
    total, after = 0, ""
    while last := await _found(handle, find, after=after, rows=_CLEAN_ROWS, **which):
        await handle.begin()
        total += (await handle.run(delete, after=after, last=last, **which))[0]
        await handle.commit()
        after = last
    return total


async def _found(handle: Handle, statement: Statement, **values: object) -> str | None:
    """Returns the value that a statement finds, without keeping a lock."""
    found: str | None
    _, found = await handle.run(statement, **values)
    await handle.rollback()
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000
