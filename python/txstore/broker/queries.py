"""Queries: finds messages by id, key or time, and describes topics.

In:     ids, keys, times, names.
Out:    messages as stored, descriptions of topics.
Always: an unknown name is an error that lists the known ones. System topics are not shown.
Not here: reading in order (`consumer`), transactions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from txstore._native import (
    DISCARD_TOPIC,
    SCHEDULE_TOPIC,
    TIMED_TOPIC,
    Store,
    StoredMessage,
    is_system_topic,
    validate_topic,
)
from txstore.errors import (
    InvalidNameError,
    InvalidOptionError,
    MessageNotFoundError,
    OffsetTooOldError,
    StoreCorruptError,
    TransactionNotFoundError,
)
from txstore.message import TransactionState, is_retry_progress, known_names

__all__ = ["Queries", "QueueExtent", "QueueRange", "TopicDescription", "must_be_positive", "must_not_be_system_topic"]

_SAME_ID_MAX = 8
_BATCH = 256


class QueueExtent(NamedTuple):
    """What is left in one queue of the log, as `broker.queues` returns it."""

    topic: str
    queue_id: int
    first: int
    """Queue offset of the first message left."""
    end: int
    """Queue offset after the last visible message."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The range of messages in one queue of a topic."""

    topic: str
    queue_id: int
    first: int
    """Queue offset of the first message left."""
    end: int
    """Queue offset after the last visible message."""
    newest: datetime | None
    """When the last message was stored; None if there is none."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, as `broker.describe_topic` returns it."""

    topic: str
    read_queues: tuple[int, ...]
    write_queues: tuple[int, ...]
    queues: tuple[QueueRange, ...]
    messages: int
    """Messages left in all queues."""
    groups: tuple[str, ...]
    """The consumer groups that have an offset in the topic, sorted."""
    message_type: str | None = None
    """The message type that it declares: NORMAL, FIFO, DELAY, TRANSACTION, MIXED. None: none, or it is not known."""


class Queries:
    """Queries on one open store. `topics()` returns the known topics of users. Thread-safe."""

    def __init__(self, store: Store, topics: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._topics = topics

    def must_know_topic(self, topic: str) -> None:
        """Raises InvalidNameError for a system topic or an unknown one."""
        must_not_be_system_topic(topic)
        validate_topic(topic)
        if topic not in self._known():
            raise InvalidNameError(f"there is no topic {topic}\nhint: {known_names('topics', self._known())}")

    def _known(self) -> Iterator[str]:
        """Yields configured topics, then those that only have messages, which takes longer to find out."""
        made = set(self._topics())
        yield from sorted(made)
        yield from sorted({row[0] for row in self._store.queues() if not is_system_topic(row[0])} - made)

    def message(self, message_id: str, topic: str | None) -> StoredMessage:
        """Finds a message by unique id or offset id. Raises MessageNotFoundError, InvalidNameError."""
        if topic is not None:
            self.must_know_topic(topic)
        for name in (topic,) if topic is not None else self._known():
            for found in self._store.query(name, message_id, _SAME_ID_MAX):
                if found.message_id == message_id:
                    return found
        by_offset = self._by_offset_id(message_id)
        if (
            by_offset is None
            or is_system_topic(by_offset.topic)
            or topic not in (None, by_offset.topic)
            or self._is_gone(by_offset)
        ):
            raise MessageNotFoundError(f"there is no message {message_id} in {topic or 'any topic'}")
        return by_offset

    def _is_gone(self, message: StoredMessage) -> bool:
        """Tells whether its queue now begins after it, because its topic was deleted."""
        return message.queue_offset < self._store.queue_range(message.topic, message.queue_id)[0]

    def _by_offset_id(self, message_id: str) -> StoredMessage | None:
        """Finds a message by offset id, which ends with the physical offset as 16 hex digits."""
        try:
            physical_offset = int(message_id[-16:], 16) if len(message_id) in (32, 56) else -1
            found = self._store.read_at(physical_offset) if 0 <= physical_offset < 2**63 else None
        except (ValueError, MessageNotFoundError, OffsetTooOldError, StoreCorruptError):
            return None  # A unique id contains no offset, and the bytes at that position need not be a record.
        return found if found is not None and found.offset_message_id == message_id.upper() else None

    def has_messages(self, topic: str, message_ids: Sequence[str]) -> list[bool]:
        """Tells for each unique id whether the log has a message of the topic with it. Raises InvalidNameError."""
        must_not_be_system_topic(topic)
        validate_topic(topic)
        return [self._has(topic, one) or self._has_delayed(topic, one) for one in message_ids]

    def _has(self, topic: str, message_id: str) -> bool:
        return any(found.message_id == message_id for found in self._store.query(topic, message_id, _SAME_ID_MAX))

    def _has_delayed(self, topic: str, message_id: str) -> bool:
        waiting = (self._store.query(where, message_id, _SAME_ID_MAX) for where in (SCHEDULE_TOPIC, TIMED_TOPIC))
        return any(one.message_id == message_id and one.real_topic == topic for found in waiting for one in found)

    def transaction_states(self, transaction_ids: Sequence[str]) -> list[TransactionState | None]:
        """Returns how the log has each transaction; None if there is no trace of it."""
        topics: list[str] = []
        states: list[TransactionState | None] = []
        for transaction_id in transaction_ids:
            try:
                states.append(self._store.transaction(transaction_id).state)
            except TransactionNotFoundError:
                topics = topics or list(self._known())
                states.append(self._state_without_half(transaction_id, topics))
        return states

    def _state_without_half(self, transaction_id: str, topics: Iterable[str]) -> TransactionState | None:
        """Returns the state by the records that retention has left of a transaction."""
        if any(self._has(topic, transaction_id) for topic in (*topics, TIMED_TOPIC)):
            return TransactionState.COMMITTED
        return TransactionState.DISCARDED if self._has(DISCARD_TOPIC, transaction_id) else None

    def oldest_timestamp(self) -> datetime | None:
        """Returns when the first message left in the log was stored; None if the log is empty."""
        while True:
            try:
                return self._store.read_at(self._store.stat().min_physical_offset).store_timestamp
            except OffsetTooOldError:
                continue  # Retention has removed it meanwhile.
            except MessageNotFoundError:
                return None

    def by_key(self, topic: str, key: str, max_messages: int) -> list[StoredMessage]:
        """Finds messages by key, newest first. Raises InvalidNameError, InvalidOptionError."""
        self.must_know_topic(topic)
        must_be_positive(max_messages)
        return self._store.query(topic, key, max_messages)

    def by_time(self, topic: str, begin: datetime, end: datetime | None, max_messages: int) -> list[StoredMessage]:
        """Finds messages stored at `begin` or later and before `end`, in the order of the log. Raises
        InvalidNameError, InvalidOptionError."""
        self.must_know_topic(topic)
        must_be_positive(max_messages)
        begin_ms = _milliseconds("begin", begin)
        end_ms = None if end is None else _milliseconds("end", end)
        if end_ms is not None and end_ms < begin_ms:
            raise InvalidOptionError(f"end {end} is before begin {begin}", option="end")
        found: list[StoredMessage] = []
        for _, queue_id, _, _ in [row for row in self._store.queues() if row[0] == topic]:
            found += self._queue_between(topic, queue_id, begin_ms, end_ms, max_messages)
        found.sort(key=lambda message: message.physical_offset)
        return found[:max_messages]

    def _queue_between(
        self, topic: str, queue_id: int, begin_ms: int, end_ms: int | None, max_messages: int
    ) -> list[StoredMessage]:
        """Returns the messages of one queue. A binary search finds its start, so nothing before it is read."""
        _, end = self._store.queue_range(topic, queue_id)
        at = self._store.search_offset(topic, queue_id, begin_ms)
        if end_ms is not None:
            end = min(end, self._store.search_offset(topic, queue_id, end_ms))
        found: list[StoredMessage] = []
        while at < end and len(found) < max_messages:
            batch, at = self._store.read(topic, queue_id, at, min(_BATCH, end - at, max_messages - len(found)))
            if not batch:
                break
            found += batch
        return found

    def topic(
        self, topic: str, read_queues: Iterable[int], write_queues: Iterable[int], message_type: str | None
    ) -> TopicDescription:
        """Describes a topic. Raises InvalidNameError."""
        self.must_know_topic(topic)
        ranges = {queue_id: (first, end) for name, queue_id, first, end in self._store.queues() if name == topic}
        reading, writing = tuple(read_queues), tuple(write_queues)
        queues = [
            self._range(topic, number, *(ranges.get(number) or self._store.queue_range(topic, number)))
            for number in sorted({*reading, *ranges})
        ]
        groups = {
            group
            for of_topic, group, _, _ in self._store.consumer_offsets()
            if of_topic == topic and not is_retry_progress(of_topic, group)
        }
        messages = sum(queue.end - queue.first for queue in queues)
        return TopicDescription(topic, reading, writing, tuple(queues), messages, tuple(sorted(groups)), message_type)

    def _range(self, topic: str, queue_id: int, first: int, end: int) -> QueueRange:
        newest = None
        if end > first:
            messages, _ = self._store.read(topic, queue_id, end - 1, 1)
            newest = messages[0].store_timestamp if messages else None
        return QueueRange(topic, queue_id, first, end, newest)


def must_not_be_system_topic(topic: str) -> None:
    """Raises InvalidNameError for a system topic."""
    if is_system_topic(topic):
        raise InvalidNameError(
            f"{topic} is a system topic\nhint: broker.transactions() and broker.transaction(id) show its content"
        )


def must_be_positive(max_messages: int) -> None:
    """Raises InvalidOptionError for a number of messages below 1."""
    if max_messages.__class__ is not int or max_messages < 1:
        raise InvalidOptionError(f"max_messages must be 1 or more, got {max_messages!r}", option="max_messages")


def _milliseconds(option: str, moment: object) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidOptionError(
            f"{option} must be a datetime with a time zone, got {moment!r}\nhint: datetime.now(UTC)", option=option
        )
    return round(moment.timestamp() * 1000)
