"""Outbox: connects a database whose rows are messages to a broker's log.

In:     databases that producers use.
Out:    one forwarder for each, which appends messages to the log and chooses queues as producers do.
Not here: rows and transactions (`txstore.database.outbox`), the log itself (a broker).
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias, TypeVar

from txstore._native import OutboxRow, java_hash_code
from txstore.errors import InvalidMessageError, InvalidNameError, TxStoreError
from txstore.message import Message, SentMessage, utc
from txstore.producer.producer import Producer

__all__ = [
    "AsyncProducer",
    "Fate",
    "MessageLimits",
    "OutboxDatabase",
    "OutboxLog",
    "Outboxes",
    "Outcome",
    "RowForwarder",
    "Waiting",
]

_SECOND = timedelta(seconds=1)
Fate: TypeAlias = Literal["appended", "present", "in_doubt"]
"""What became of a row's message; see `Store.append_rows`."""
Outcome: TypeAlias = Fate | TxStoreError
"""The same, or why the message was not appended. InvalidMessageError and InvalidNameError: it never can be."""


class OutboxLog(Protocol):
    """Appends the messages of rows, and tells when they are durable."""

    destination: int
    """A number of 31 bits that tells this log from others; each row contains it."""
    is_remote: bool
    """Whether calls wait for another process. Then processes may be alive whose rows are for the same log, and
    messages are durable when they are appended."""
    appends_once: bool
    """Whether it stores a message once that two processes send."""
    remembered_as: tuple[str, str] | None
    """A name, and what the database keeps under it, so that a later process knows the log while it is away."""
    take_over_seconds: float
    """How long another process must have left a row before it is taken over."""

    def append(self, row: OutboxRow, queue_id: int) -> Fate:
        """Appends the message of a committed row of this process. Never waits for a disk. Not for a remote log."""

    def append_many(self, rows: Sequence[OutboxRow], queue_ids: Sequence[int], *, once: bool) -> Sequence[Outcome]:
        """Appends messages of committed rows; with `once`, those that are not in the log yet."""

    def appended_end(self) -> int:
        """Returns the end of what is appended."""

    def durable_end(self) -> int:
        """Returns the end of what is durable. Messages appended below it survive a power loss."""

    def make_durable(self) -> None:
        """Makes everything appended so far durable."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The limits of a log that a message must keep before its row is inserted: after the commit it is too late."""

    max_message_size: int
    """In bytes of the body."""
    timer_max_delay: timedelta | None
    """How far ahead `deliver_at` may be. None: a server knows it, and parks the row."""
    time_ms: Callable[[], int] = _now_ms

    def check(self, message: Message) -> None:
        """Raises InvalidMessageError for a message that the log would not take."""
        if len(message.body) > self.max_message_size:
            raise InvalidMessageError(
                f"the body has {len(message.body)} bytes, max_message_size allows {self.max_message_size}\n"
                "hint: store the body elsewhere and send a reference to it, or raise the option"
            )
        if self.timer_max_delay is None or message.deliver_at is None:
            return
        ahead = message.deliver_at - utc(self.time_ms())
        if ahead > self.timer_max_delay:
            raise InvalidMessageError(
                f"the message is to be delivered in {ahead // _SECOND} s; timer_max_delay_sec allows "
                f"{self.timer_max_delay // _SECOND} s\nhint: choose an earlier time, or raise the option"
            )


class AsyncProducer(Protocol):
    """A producer of `txstore.aio`, on the same group as a blocking one."""

    async def send(self, message: Message, *, queue_id: int | None = None) -> SentMessage: ...
    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> Sequence[SentMessage]: ...
    async def choose(self, message: Message, queue_id: int | None) -> int:
        """Returns the queue for a message."""

    async def close(self) -> None: ...


class Waiting(Protocol):
    """How many rows wait for a log."""

    @property
    def rows(self) -> int: ...
    @property
    def oldest_seconds(self) -> float: ...


class RowForwarder(Protocol):
    """What forwards the rows of one database. A broker closes it before its store."""

    @property
    def name(self) -> str:
        """The database, without a password."""

    def status(self) -> Waiting:
        """Counts the rows that wait. Raises what the driver raises."""

    def close(self, timeout: float) -> None: ...


class LogMemory(Protocol):
    """A database that remembers the logs for which it has rows."""

    def remembered_log(self, name: str) -> str | None:
        """Returns what a forwarder has kept under a name; None if there is nothing."""


ForwarderT = TypeVar("ForwarderT", bound=RowForwarder)
ProducerT_co = TypeVar("ProducerT_co", covariant=True)
AsyncProducerT_co = TypeVar("AsyncProducerT_co", covariant=True)


class Outboxes:
    """A broker's forwarders, one for each database. Thread-safe."""

    def __init__(
        self,
        log: Callable[[Callable[[str], str | None]], OutboxLog],
        write_queues: Callable[[str], Sequence[int]],
        *,
        is_remote: bool,
        limits: MessageLimits,
    ) -> None:
        """`log` gets a call that returns what a database remembers under a name. With `is_remote`, `log` and
        `write_queues` wait for another process. Producers check the `limits` before they insert a row."""
        self.is_remote = is_remote
        self.limits = limits
        self._new_log = log
        self._write_queues = write_queues
        self._lock = threading.Lock()
        self._forwarders: dict[int, tuple[object, RowForwarder]] = {}
        self._turn = itertools.count().__next__

    def forwarder(
        self, database: LogMemory, make: Callable[[OutboxLog, Callable[[OutboxRow], int]], ForwarderT]
    ) -> ForwarderT:
        """Returns the forwarder of a database's rows; makes it with the log and a choice of queues the first time."""
        with self._lock:
            found = self._forwarders.get(id(database))
            if found is None:
                log = self._new_log(database.remembered_log)
                found = self._forwarders[id(database)] = (database, make(log, self._choose))
            return found[1]  # type: ignore[return-value]

    def log(self, database: LogMemory) -> tuple[OutboxLog, Callable[[OutboxRow], int]]:
        """Returns the log, and the choice of queues, for rows that no forwarder sends."""
        return self._new_log(database.remembered_log), self._choose

    def close(self, timeout: float) -> None:
        """Forwards what is committed, then stops; each forwarder within `timeout` seconds."""
        for forwarder in self.forwarders():
            forwarder.close(timeout)

    def forwarders(self) -> list[RowForwarder]:
        """Returns all forwarders."""
        with self._lock:
            return [forwarder for _, forwarder in self._forwarders.values()]

    def _choose(self, row: OutboxRow) -> int:
        """Returns the queue of a row: its own, its message group's, or the next in turn. Raises InvalidNameError."""
        queues = self._write_queues(row.topic)
        if row.queue_id is not None and row.queue_id in queues:
            return row.queue_id
        if row.queue_id is not None:
            raise InvalidNameError(f"topic {row.topic} has no queue {row.queue_id} that accepts messages")
        if not queues:
            raise InvalidNameError(f"topic {row.topic} has no queue that accepts messages")
        number = self._turn() if row.message_group is None else java_hash_code(row.message_group)
        return queues[number % len(queues)]


class OutboxDatabase(Protocol[ProducerT_co, AsyncProducerT_co]):
    """A database whose rows are messages: a `txstore.database.Database`."""

    def outbox_producer(self, producer: Producer, outboxes: Outboxes) -> ProducerT_co:
        """Returns the producer of `broker.producer(group, database=…)`."""

    def async_outbox_producer(
        self, producer: Producer, at_once: AsyncProducer, outboxes: Outboxes
    ) -> AsyncProducerT_co:
        """Returns the producer of the same call in `txstore.aio`; `at_once` sends without a session."""
