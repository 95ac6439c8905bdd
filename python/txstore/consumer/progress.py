"""Consumer progress: the offsets of consumer groups, their lag, retries and dead letters.

In:     groups, topics, messages to deliver again.
Out:    copies in the group's retry and dead letter topics; offsets.
Always: a message is delivered again up to 16 times at RocketMQ's delay levels, then kept as a dead letter, never
        dropped. In a group's retry topic there is one offset for each topic that the group reads.
Not here: consumers, who is told of a reset, writing files (the engine).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from txstore._native import RETRY_PREFIX, validate_group, validate_topic
from txstore.errors import InvalidNameError, InvalidOptionError, MessageNotFoundError
from txstore.message import (
    ConsumeFromWhere,
    ReceivedMessage,
    SentMessage,
    dead_letter_topic,
    is_retry_progress,
    known_names,
    retry_group,
    retry_topic,
)
from txstore.selector import Selector
from txstore.serialization import Serializer, decode

__all__ = ["ConsumerProgress", "DeadLetter", "GroupDescription", "ProgressStore", "QueueLag", "dead_letter_of"]

T = TypeVar("T")
_FIRST_RETRY_LEVEL = 3
_LEVEL_MAX = 18
_BATCH = 256


class ProgressStore(Protocol):
    """The store of messages and offsets: the engine's, or a fake one."""

    def append_copy(
        self,
        physical_offset: int,
        topic: str,
        queue_id: int,
        *,
        delay_level: int = ...,
        reconsume_times: int = ...,
        properties: Sequence[tuple[str, str]] = ...,
    ) -> SentMessage: ...
    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None: ...
    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None: ...
    def consumer_offsets(self) -> Sequence[tuple[str, str, int, int]]: ...
    def remove_consumer_offsets(self, topic: str, group: str) -> None: ...
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...
    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = ..., tags: Selector = None
    ) -> tuple[Sequence[Any], int]: ...


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of a group in one queue, in messages."""

    group: str
    topic: str
    queue_id: int
    consumer_offset: int | None
    """The queue offset it reads next; None if it has not begun."""
    end: int
    """Queue offset after the last visible message."""
    lag: int
    in_flight: int = 0
    """Of these, the messages that clients of the gRPC protocol have now. Only `describe_group` on a server knows."""
    to_redeliver: int = 0
    """Of these, the messages that clients of the gRPC protocol had, and that wait to be delivered again."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group, as `broker.describe_group` returns it."""

    group: str
    topics: tuple[str, ...]
    """The topics in which it has an offset, or a consumer in this process, sorted."""
    queues: tuple[QueueLag, ...]
    lag: int
    """Messages that it has not acknowledged, including its retries."""
    dead_letters: int
    members: int
    """Its consumers: those in this process, and, if a server describes it, those that are connected."""
    protocol: str | None = None
    """Of the connected ones: remoting or grpc. None: none is connected."""

    @property
    def in_flight(self) -> int:
        """Returns how many messages clients of the gRPC protocol have now."""
        return sum(row.in_flight for row in self.queues)

    @property
    def to_redeliver(self) -> int:
        """Returns how many messages clients of the gRPC protocol had, and get again."""
        return sum(row.to_redeliver for row in self.queues)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group failed to consume as often as allowed."""

    group: str
    topic: str
    """The topic that it was sent to."""
    message_id: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    reconsume_times: int
    died: datetime
    queue_offset: int
    """Its queue offset in the group's dead letter topic."""
    physical_offset: int

    def value(self, kind: type[T], *, serializer: Serializer | None = None) -> T:
        """Returns the body's value as a `kind`; from JSON or by the `serializer`. Raises DecodeError."""
        return decode(self, kind, serializer)


class ConsumerProgress:
    """The progress of all consumer groups. Thread-safe. `make_topic(topic)` ensures a topic with one queue."""

    def __init__(
        self,
        store: ProgressStore,
        make_topic: Callable[[str], None],
        topics: Callable[[], Iterable[str]],
        groups: Callable[[], Iterable[str]],
        read_queues: Callable[[str], Sequence[int]],
    ) -> None:
        self._store = store
        self._make_topic = make_topic
        self._topics = topics
        self._groups = groups
        self._read_queues = read_queues
        self._lock = threading.RLock()

    # Retries and dead letters

    def send_back(
        self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int
    ) -> SentMessage:
        """Copies a message to the group's retry topic, with a delay; after the last retry, to its dead letters."""
        times = message.reconsume_times
        properties = message.properties
        origin = properties.get("ORIGIN_MESSAGE_ID", message.offset_message_id)
        topic = message.topic
        if topic.startswith(RETRY_PREFIX):
            # In any other topic the property is the producer's, and could name a topic that it may not write.
            topic = _origin(properties.get("RETRY_TOPIC"), topic)
        if delay_level < 0 or times >= max_reconsume_times:
            dead = dead_letter_topic(group)
            self._make_topic(dead)
            facts = [("RETRY_TOPIC", topic), ("ORIGIN_MESSAGE_ID", origin)]
            facts += [("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", message.message_id)]
            return self._store.append_copy(
                message.physical_offset, dead, 0, reconsume_times=times + 1, properties=facts
            )
        retry = retry_topic(group)
        self._make_topic(retry)
        with self._lock:
            # Before the message is stored, so that no other topic's progress covers it.
            self.retry_offset(retry, retry_group(group, topic), 0)
        level = delay_level if delay_level > 0 else min(_FIRST_RETRY_LEVEL + times, _LEVEL_MAX)
        return self._store.append_copy(
            message.physical_offset,
            retry,
            0,
            delay_level=level,
            reconsume_times=times + 1,
            properties=[("RETRY_TOPIC", topic), ("ORIGIN_MESSAGE_ID", origin)],
        )

    def dead_letters(self, group: str, *, limit: int | None = None) -> list[DeadLetter]:
        """Returns a group's dead letters, oldest first. Raises InvalidNameError for an unknown group."""
        self._must_know_group(group)
        if limit is not None and limit < 1:
            raise InvalidOptionError(f"limit must be 1 or more, or None for all, got {limit!r}", option="limit")
        topic = dead_letter_topic(group)
        found: list[DeadLetter] = []
        for queue_id in self._read_queues(topic):
            offset, _ = self._store.queue_range(topic, queue_id)
            while limit is None or len(found) < limit:
                messages, offset = self._store.read(topic, queue_id, offset, _BATCH)
                if not messages:
                    break
                found.extend(dead_letter_of(group, message) for message in messages)
        return found[:limit]

    def resend(self, letter: DeadLetter) -> SentMessage:
        """Delivers a dead letter to its group again, with a fresh retry count. Other groups do not see it.

        It stays in the list. Raises MessageNotFoundError if the list no longer has it.
        """
        topic = dead_letter_topic(letter.group)
        messages, _ = self._store.read(topic, 0, letter.queue_offset, 1)
        if not messages or messages[0].physical_offset != letter.physical_offset:
            raise MessageNotFoundError(f"group {letter.group} no longer has the dead letter {letter.message_id}")
        retry = retry_topic(letter.group)
        self._make_topic(retry)
        with self._lock:
            self.retry_offset(retry, retry_group(letter.group, letter.topic), 0)
        cleared = [("DLQ_ORIGIN_TOPIC", ""), ("DLQ_ORIGIN_MESSAGE_ID", "")]
        return self._store.append_copy(
            letter.physical_offset, retry, 0, properties=[*cleared, ("RETRY_TOPIC", letter.topic)]
        )

    # Offsets

    def offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Returns the queue offset that a group reads next; None if it has no offset."""
        if is_retry_progress(topic, group):
            return self.retry_offset(topic, group, queue_id)
        return self._store.consumer_offset(topic, group, queue_id)

    def set_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Sets the queue offset that a group reads next."""
        if is_retry_progress(topic, group):
            self.set_retry_offset(topic, group, queue_id, queue_offset)
            return
        self._store.set_consumer_offset(topic, group, queue_id, queue_offset)
        if topic == retry_topic(group):
            self._raise_retry_offsets(topic, group, queue_id, queue_offset)

    # Offsets in a retry topic: one for each topic that the group reads. The least of them is also kept under the
    # group's own name, which RocketMQ brokers and lag use.

    def retry_offset(self, topic: str, name: str, queue_id: int) -> int:
        """Returns a group's offset in its retry topic for one of its topics; sets it on the first call."""
        with self._lock:
            known = self._store.consumer_offset(topic, name, queue_id)
            if known is not None:
                return known
            group = topic.removeprefix(RETRY_PREFIX)
            base_name = retry_group(group, "")
            base = self._store.consumer_offset(topic, base_name, queue_id)
            if base is None:
                # Before this, only a broker has read the retry topic, or nobody.
                base = self._store.consumer_offset(topic, group, queue_id) or 0
                self._store.set_consumer_offset(topic, base_name, queue_id, base)
            self._store.set_consumer_offset(topic, name, queue_id, base)
            return base

    def set_retry_offset(self, topic: str, name: str, queue_id: int, queue_offset: int) -> None:
        """Sets a group's offset in its retry topic for one of its topics."""
        with self._lock:
            self._store.set_consumer_offset(topic, name, queue_id, queue_offset)
            group = topic.removeprefix(RETRY_PREFIX)
            base_name = retry_group(group, "")
            least = min(
                offset
                for of_topic, of_name, of_queue, offset in self._store.consumer_offsets()
                if of_topic == topic and of_queue == queue_id and of_name.startswith(base_name) and of_name != base_name
            )
            self._store.set_consumer_offset(topic, group, queue_id, least)

    def forget_topic(self, topic: str) -> None:
        """Removes a deleted topic's offsets; messages from it are skipped in the retry topics."""
        for of_topic, name, queue_id, _ in self._store.consumer_offsets():
            group = of_topic.removeprefix(RETRY_PREFIX)
            if of_topic == topic:
                self._store.remove_consumer_offsets(topic, name)
            elif of_topic.startswith(RETRY_PREFIX) and name == retry_group(group, topic):
                _, end = self._store.queue_range(of_topic, queue_id)
                self.set_retry_offset(of_topic, name, queue_id, end)

    def forget_group(self, group: str) -> None:
        """Removes a deleted group's offsets, including those of its broadcasting members."""
        others = set(self._groups()) - {group}
        for topic, name, _, _ in self._store.consumer_offsets():
            its_own = name == group or (name.startswith(f"{group}%") and name not in others)
            if topic == retry_topic(group) or its_own:
                self._store.remove_consumer_offsets(topic, name)

    def _raise_retry_offsets(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Raises the per-topic offsets to one that a remote client set for the whole retry topic under the group's
        own name. Otherwise retention would keep forever what that client has read."""
        with self._lock:
            for of_topic, name, of_queue, offset in self._store.consumer_offsets():
                progress = of_topic == topic and of_queue == queue_id and name.startswith(retry_group(group, ""))
                if progress and offset < queue_offset:
                    self._store.set_consumer_offset(topic, name, queue_id, queue_offset)

    # Lag and resets

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """Returns a group's lag by queue: in `topics`, in every topic where it has an offset, and in its retry topic.

        Members of a broadcasting group have their own rows, as GROUP%INSTANCE. Raises InvalidNameError.
        """
        self._must_know_group(group)
        return self._lag({group: topics})[group]

    def lag_by_group(self, topics: Mapping[str, Iterable[str]]) -> dict[str, list[QueueLag]]:
        """Returns the lag of every group, as `lag` does for one. `topics`: by group, if there are any."""
        return self._lag({group: topics.get(group, ()) for group in self._groups()})

    def _lag(self, topics: Mapping[str, Iterable[str]]) -> dict[str, list[QueueLag]]:
        """Returns the lag of the groups in `topics`. Reads the offsets of all groups once, not once for each group."""
        offsets: dict[str, dict[tuple[str, str], dict[int, int]]] = {
            group: {(topic, group): {} for topic in (*of_group, retry_topic(group))}
            for group, of_group in topics.items()
        }
        for topic, name, queue_id, offset in self._store.consumer_offsets():
            for group in _owners(topic, name):
                if group in offsets:
                    offsets[group].setdefault((topic, name), {})[queue_id] = offset
        return {group: self._lag_rows(of_group) for group, of_group in offsets.items()}

    def _lag_rows(self, offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> list[QueueLag]:
        """Returns a row for each queue. `offsets` are by topic and name, then by queue."""
        rows: list[QueueLag] = []
        for (topic, name), known in sorted(offsets.items()):
            for queue_id in self._read_queues(topic):
                first, end = self._store.queue_range(topic, queue_id)
                begin = max(first, known.get(queue_id, 0))
                rows.append(QueueLag(name, topic, queue_id, known.get(queue_id), end, max(0, end - begin)))
        return rows

    def describe(self, group: str, topics: Iterable[str], members: int) -> GroupDescription:
        """Returns a group's lag and the number of its dead letters. Raises InvalidNameError."""
        rows = self.lag(group, topics)
        dead = dead_letter_topic(group)
        ranges = [self._store.queue_range(dead, queue_id) for queue_id in self._read_queues(dead)]
        return GroupDescription(
            group=group,
            topics=tuple(sorted({row.topic for row in rows if row.topic != retry_topic(group)})),
            queues=tuple(rows),
            lag=sum(row.lag for row in rows),
            dead_letters=sum(end - first for first, end in ranges),
            members=members,
        )

    def reset(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, queue_id: int | None
    ) -> dict[int, int]:
        """Sets a group's offsets and returns them as queue id → queue offset.

        Raises InvalidNameError (unknown group, topic or queue) and InvalidOptionError (an offset outside its queue or
        without its queue, or another value).
        """
        self._must_know_group(group)
        queue_ids = self._read_queues(topic)
        if not queue_ids:
            known = known_names("topics", sorted(self._topics()))
            raise InvalidNameError(f"unknown topic {topic}\nhint: {known}")
        if queue_id is not None:
            if queue_id not in queue_ids:
                raise InvalidNameError(
                    f"topic {topic} has no queue {queue_id}\nhint: its queues are {', '.join(map(str, queue_ids))}"
                )
            queue_ids = [queue_id]
        elif isinstance(to, int):
            raise InvalidOptionError(
                f"offset {to} applies to one queue only\nhint: name it, for example queue_id=0", option="queue_id"
            )
        offsets = {number: self._reset_offset(topic, number, to) for number in queue_ids}
        for number, offset in offsets.items():
            self._store.set_consumer_offset(topic, group, number, offset)
        return offsets

    def _reset_offset(self, topic: str, queue_id: int, to: object) -> int:
        first, end = self._store.queue_range(topic, queue_id)
        if to is ConsumeFromWhere.FIRST:
            return first
        if to is ConsumeFromWhere.LAST:
            return end
        if isinstance(to, datetime):
            return self._store.search_offset(topic, queue_id, round(to.timestamp() * 1000))
        if isinstance(to, bool) or not isinstance(to, int):
            raise InvalidOptionError(
                f"cannot reset to {to!r}\nhint: ConsumeFromWhere.FIRST or LAST, a datetime, or an offset with its "
                "queue_id",
                option="to",
            )
        if not first <= to <= end:
            raise InvalidOptionError(
                f"offset {to} is outside {topic}/{queue_id}\nhint: {first} (its first) to {end} (its end)", option="to"
            )
        return to

    def _must_know_group(self, group: str) -> None:
        validate_group(group)
        known = sorted(self._groups())
        if group not in known:
            raise InvalidNameError(f"unknown consumer group {group}\nhint: {known_names('groups', known)}")


def _owners(topic: str, name: str) -> Iterator[str]:
    """Yields the groups that an offset may belong to: the one of its name and, for GROUP%INSTANCE, the member's.

    Both parts may contain `%`.
    """
    yield name
    if not is_retry_progress(topic, name):
        for at, character in enumerate(name):
            if character == "%":
                yield name[:at]


def _origin(said: str | None, topic: str) -> str:
    """Returns the topic that a message was first sent to: that of its property, if it is a valid name."""
    try:
        validate_topic(said or "")
    except InvalidNameError:
        return topic
    return said or topic


def dead_letter_of(group: str, message: Any) -> DeadLetter:
    """Returns a message of a group's dead letter topic as a dead letter."""
    properties = message.properties
    return DeadLetter(
        group=group,
        topic=properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC") or message.topic,
        message_id=message.message_id,
        body=message.body,
        tags=message.tags,
        keys=message.keys,
        properties=properties,
        reconsume_times=message.reconsume_times,
        died=message.store_timestamp,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
    )
