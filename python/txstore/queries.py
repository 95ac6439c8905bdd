"""Queries: messages found by id, key or time, and what there is to know of a topic or a group.

In: ids, keys, times, names. Out: messages as stored, pictures of topics and groups. Always: a name that is not there is
an error that tells those that are; a system topic shows nothing. Not here: reading in order (`consumer`), transactions.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from txstore._native import Store, StoredMessage, is_system_topic, validate_topic
from txstore.errors import (
    InvalidNameError,
    InvalidOptionError,
    MessageNotFoundError,
    OffsetTooOldError,
    StoreCorruptError,
)
from txstore.message import is_retry_progress, utc

__all__ = ["Queries", "QueueRange", "TopicDescription"]

_SAME_ID_MAX = 8
_BATCH = 256


@dataclass(frozen=True, slots=True)
class QueueRange:
    """One queue of a topic: which messages it has."""

    topic: str
    queue_id: int
    first: int
    """Queue offset of the first message that is left."""
    end: int
    """One past the last visible message."""
    newest: datetime | None
    """When the last was stored; None: there is none."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, as `broker.describe_topic` tells it."""

    topic: str
    read_queues: tuple[int, ...]
    write_queues: tuple[int, ...]
    queues: tuple[QueueRange, ...]
    messages: int
    """In all queues, as far as they are left."""
    groups: tuple[str, ...]
    """The consumer groups that have an offset in it, sorted."""


class Queries:
    """Looks into one open store. `topics()`: the users' topics that are known. Safe to use from many threads."""

    def __init__(self, store: Store, topics: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._topics = topics

    def must_know_topic(self, topic: str) -> None:
        """Raises InvalidNameError for a system topic, and for one that is not there."""
        if is_system_topic(topic):
            raise InvalidNameError(
                f"{topic} is a system topic\nhint: broker.transactions() and broker.transaction(id) show what is in it"
            )
        validate_topic(topic)
        if topic not in self._known():
            known = ", ".join(self._known()) or "none"
            raise InvalidNameError(f"there is no topic {topic}\nhint: the topics are {known}")

    def _known(self) -> Iterator[str]:
        """Topics that are configured, then those that only have messages, which takes longer to find out."""
        made = set(self._topics())
        yield from sorted(made)
        yield from sorted({row[0] for row in self._store.queues() if not is_system_topic(row[0])} - made)

    def message(self, message_id: str, topic: str | None) -> StoredMessage:
        """By unique id or offset id. Raises MessageNotFoundError, InvalidNameError."""
        if topic is not None:
            self.must_know_topic(topic)
        for name in (topic,) if topic is not None else self._known():
            for found in self._store.query(name, message_id, _SAME_ID_MAX):
                if found.message_id == message_id:
                    return found
        placed = self._by_offset_id(message_id)
        if (
            placed is None
            or is_system_topic(placed.topic)
            or topic not in (None, placed.topic)
            or self._is_gone(placed)
        ):
            raise MessageNotFoundError(f"there is no message {message_id} in {topic or 'any topic'}")
        return placed

    def _is_gone(self, message: StoredMessage) -> bool:
        """Whether its queue begins behind it: its topic was deleted."""
        return message.queue_offset < self._store.queue_range(message.topic, message.queue_id)[0]

    def _by_offset_id(self, message_id: str) -> StoredMessage | None:
        """Offset ids end with the physical offset, 16 hex digits."""
        try:
            place = int(message_id[-16:], 16) if len(message_id) in (32, 56) else -1
            found = self._store.read_at(place) if 0 <= place < 2**63 else None
        except (ValueError, MessageNotFoundError, OffsetTooOldError, StoreCorruptError):
            return None  # A unique id names no place, and what it would point at need not be a record.
        return found if found is not None and found.offset_message_id == message_id.upper() else None

    def by_key(self, topic: str, key: str, max_messages: int) -> list[StoredMessage]:
        """Newest first. Raises InvalidNameError, InvalidOptionError."""
        self.must_know_topic(topic)
        _at_least_one(max_messages)
        return self._store.query(topic, key, max_messages)

    def by_time(self, topic: str, begin: datetime, end: datetime | None, max_messages: int) -> list[StoredMessage]:
        """Stored at `begin` or later and before `end`, in the order of the log. Raises InvalidNameError,
        InvalidOptionError."""
        self.must_know_topic(topic)
        _at_least_one(max_messages)
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
        """Of one queue: its place is found by halving, so nothing in front of it is read."""
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

    def topic(self, topic: str, read_queues: Iterable[int], write_queues: Iterable[int]) -> TopicDescription:
        """Raises InvalidNameError."""
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
        return TopicDescription(topic, reading, writing, tuple(queues), messages, tuple(sorted(groups)))

    def _range(self, topic: str, queue_id: int, first: int, end: int) -> QueueRange:
        newest = None
        if end > first:
            messages, _ = self._store.read(topic, queue_id, end - 1, 1)
            newest = utc(messages[0].store_timestamp_ms) if messages else None
        return QueueRange(topic, queue_id, first, end, newest)


def _at_least_one(max_messages: int) -> None:
    if max_messages.__class__ is not int or max_messages < 1:
        raise InvalidOptionError(f"max_messages {max_messages!r} must be 1 or more", option="max_messages")


def _milliseconds(option: str, moment: object) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidOptionError(
            f"{option} {moment!r} is no datetime with a time zone\nhint: datetime.now(UTC)", option=option
        )
    return round(moment.timestamp() * 1000)
