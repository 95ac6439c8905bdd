"""Backlog: what consumer groups have still to do: retries, dead letters, lag, offsets set anew.

In: groups, topics, messages that are to come again. Out: copies in the group's retry and dead letter topics, offsets.
Always: a message comes again 16 times by RocketMQ's levels and is then parked, never dropped; a group's retry topic
holds its place for each topic that it reads. Not here: consumers, who is told of a reset, writing files (the engine).
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from txstore._native import validate_group, validate_topic
from txstore.errors import InvalidNameError, InvalidOptionError, MessageNotFoundError
from txstore.message import (
    ConsumeFromWhere,
    ReceivedMessage,
    SentMessage,
    dead_letter_topic,
    is_retry_progress,
    retry_group,
    retry_topic,
    utc,
)

__all__ = ["Backlog", "BacklogStore", "DeadLetter", "GroupDescription", "QueueLag"]

_RETRY = "%RETRY%"
_FIRST_RETRY_LEVEL = 3
_LEVEL_MAX = 18
_BATCH = 256


class BacklogStore(Protocol):
    """What holds messages and offsets: the engine's store, or a fake one."""

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
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = ..., tags: Sequence[str] | None = None
    ) -> tuple[Sequence[Any], int]: ...


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue, in messages."""

    group: str
    topic: str
    queue_id: int
    consumer_offset: int | None
    """Where it goes on; None: it has not begun."""
    end: int
    """One past the last visible message."""
    lag: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group, as `broker.describe_group` tells it."""

    group: str
    topics: tuple[str, ...]
    """The topics in which it has an offset, or a consumer here, sorted."""
    queues: tuple[QueueLag, ...]
    lag: int
    """Messages that it has not acknowledged, its retries among them."""
    dead_letters: int
    members: int
    """Its consumers in this process."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up."""

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
    """Its place among the group's dead letters."""
    physical_offset: int


class Backlog:
    """Safe to use from many threads. `make_topic(topic)` sees to it that a topic with one queue is there."""

    def __init__(
        self,
        store: BacklogStore,
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

    # Again, and given up

    def send_back(
        self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int
    ) -> SentMessage:
        """To the group's retry topic, after a delay; after the last time to its dead letters."""
        times = message.reconsume_times
        properties = message.properties
        origin = properties.get("ORIGIN_MESSAGE_ID", message.offset_message_id)
        topic = _origin(properties.get("RETRY_TOPIC"), message.topic)
        if delay_level < 0 or times >= max_reconsume_times:
            dead = dead_letter_topic(group)
            self._make_topic(dead)
            facts = [("RETRY_TOPIC", topic), ("ORIGIN_MESSAGE_ID", origin)]
            facts += [("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", message.message_id)]
            return self._store.append_copy(
                message.physical_offset, dead, 0, reconsume_times=times + 1, properties=facts
            )
        again = retry_topic(group)
        self._make_topic(again)
        with self._lock:
            # Before the message is there, so that another topic's progress never stands for this one's.
            self.retry_offset(again, retry_group(group, topic), 0)
        level = delay_level if delay_level > 0 else min(_FIRST_RETRY_LEVEL + times, _LEVEL_MAX)
        return self._store.append_copy(
            message.physical_offset,
            again,
            0,
            delay_level=level,
            reconsume_times=times + 1,
            properties=[("RETRY_TOPIC", topic), ("ORIGIN_MESSAGE_ID", origin)],
        )

    def dead_letters(self, group: str, *, limit: int | None = None) -> list[DeadLetter]:
        """What a group gave up, the oldest first. Raises InvalidNameError for an unknown group."""
        self._must_know_group(group)
        if limit is not None and limit < 1:
            raise InvalidOptionError(f"limit {limit!r} must be 1 or more, or None for all", option="limit")
        topic = dead_letter_topic(group)
        found: list[DeadLetter] = []
        for queue_id in self._read_queues(topic):
            offset, _ = self._store.queue_range(topic, queue_id)
            while limit is None or len(found) < limit:
                messages, offset = self._store.read(topic, queue_id, offset, _BATCH)
                if not messages:
                    break
                found.extend(_dead_letter(group, message) for message in messages)
        return found[:limit]

    def resend(self, letter: DeadLetter) -> SentMessage:
        """Gives a dead letter to its group once more, as if it had not failed yet; other groups do not see it.

        It stays in the list. Raises MessageNotFoundError if it is not there any more.
        """
        topic = dead_letter_topic(letter.group)
        messages, _ = self._store.read(topic, 0, letter.queue_offset, 1)
        if not messages or messages[0].physical_offset != letter.physical_offset:
            raise MessageNotFoundError(f"there is no dead letter {letter.message_id} of group {letter.group} any more")
        again = retry_topic(letter.group)
        self._make_topic(again)
        with self._lock:
            self.retry_offset(again, retry_group(letter.group, letter.topic), 0)
        gone = [("DLQ_ORIGIN_TOPIC", ""), ("DLQ_ORIGIN_MESSAGE_ID", "")]
        return self._store.append_copy(
            letter.physical_offset, again, 0, properties=[*gone, ("RETRY_TOPIC", letter.topic)]
        )

    # Offsets

    def offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Where a group goes on; None: it has no offset there."""
        if is_retry_progress(topic, group):
            return self.retry_offset(topic, group, queue_id)
        return self._store.consumer_offset(topic, group, queue_id)

    def set_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        if is_retry_progress(topic, group):
            self.set_retry_offset(topic, group, queue_id, queue_offset)
            return
        self._store.set_consumer_offset(topic, group, queue_id, queue_offset)
        if topic == retry_topic(group):
            self._raise_retry_offsets(topic, group, queue_id, queue_offset)

    # The places in a retry topic: one for each topic that the group reads, and the least of them under the group's own
    # name, which is what a RocketMQ broker and lag go by.

    def retry_offset(self, topic: str, name: str, queue_id: int) -> int:
        """Where a group goes on in its retry topic for one of its topics; noted when it is asked for first."""
        with self._lock:
            known = self._store.consumer_offset(topic, name, queue_id)
            if known is not None:
                return known
            group = topic.removeprefix(_RETRY)
            base_name = retry_group(group, "")
            base = self._store.consumer_offset(topic, base_name, queue_id)
            if base is None:
                # A broker, or nobody, has read it before.
                base = self._store.consumer_offset(topic, group, queue_id) or 0
                self._store.set_consumer_offset(topic, base_name, queue_id, base)
            self._store.set_consumer_offset(topic, name, queue_id, base)
            return base

    def set_retry_offset(self, topic: str, name: str, queue_id: int, queue_offset: int) -> None:
        with self._lock:
            self._store.set_consumer_offset(topic, name, queue_id, queue_offset)
            group = topic.removeprefix(_RETRY)
            base_name = retry_group(group, "")
            least = min(
                offset
                for of_topic, of_name, of_queue, offset in self._store.consumer_offsets()
                if of_topic == topic and of_queue == queue_id and of_name.startswith(base_name) and of_name != base_name
            )
            self._store.set_consumer_offset(topic, group, queue_id, least)

    def forget_topic(self, topic: str) -> None:
        """A topic goes: no group has a place in it, and what came from it is passed over in the retry topics."""
        for of_topic, name, queue_id, _ in self._store.consumer_offsets():
            group = of_topic.removeprefix(_RETRY)
            if of_topic == topic:
                self._store.remove_consumer_offsets(topic, name)
            elif of_topic.startswith(_RETRY) and name == retry_group(group, topic):
                _, end = self._store.queue_range(of_topic, queue_id)
                self.set_retry_offset(of_topic, name, queue_id, end)

    def forget_group(self, group: str) -> None:
        """A group goes, and its places in all topics, those of its broadcasting members among them."""
        others = set(self._groups()) - {group}
        for topic, name, _, _ in self._store.consumer_offsets():
            its_own = name == group or (name.startswith(f"{group}%") and name not in others)
            if topic == retry_topic(group) or its_own:
                self._store.remove_consumer_offsets(topic, name)

    def _raise_retry_offsets(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """A client elsewhere reads the retry topic as one, under the group's own name: no topic's place stays behind
        it, or retention would keep for ever what it has read."""
        with self._lock:
            for of_topic, name, of_queue, offset in self._store.consumer_offsets():
                progress = of_topic == topic and of_queue == queue_id and name.startswith(retry_group(group, ""))
                if progress and offset < queue_offset:
                    self._store.set_consumer_offset(topic, name, queue_id, queue_offset)

    # Lag and resets

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """How far a group is behind, queue by queue: in `topics`, wherever it has an offset, in its retry topic.

        Members of a broadcasting group have rows of their own, as GROUP%INSTANCE. Raises InvalidNameError.
        """
        self._must_know_group(group)
        offsets: dict[tuple[str, str], dict[int, int]] = {(topic, group): {} for topic in (*topics, retry_topic(group))}
        for topic, name, queue_id, offset in self._store.consumer_offsets():
            member = name.startswith(f"{group}%") and not is_retry_progress(topic, name)
            if name == group or member:
                offsets.setdefault((topic, name), {})[queue_id] = offset
        rows: list[QueueLag] = []
        for (topic, name), known in sorted(offsets.items()):
            for queue_id in self._read_queues(topic):
                first, end = self._store.queue_range(topic, queue_id)
                begin = max(first, known.get(queue_id, 0))
                rows.append(QueueLag(name, topic, queue_id, known.get(queue_id), end, max(0, end - begin)))
        return rows

    def describe(self, group: str, topics: Iterable[str], members: int) -> GroupDescription:
        """A group's lag, and how many dead letters it has. Raises InvalidNameError."""
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
        """Sets a group's offsets; (queue id → queue offset) as they are then. Raises InvalidNameError (unknown group,
        topic or queue), InvalidOptionError (an offset outside its queue, without its queue, or no place at all)."""
        self._must_know_group(group)
        queue_ids = self._read_queues(topic)
        if not queue_ids:
            known = ", ".join(sorted(self._topics())) or "none"
            raise InvalidNameError(f"there is no topic {topic} to read\nhint: the topics are {known}")
        if queue_id is not None:
            if queue_id not in queue_ids:
                raise InvalidNameError(
                    f"topic {topic} has no queue {queue_id}\nhint: its queues are {', '.join(map(str, queue_ids))}"
                )
            queue_ids = [queue_id]
        elif isinstance(to, int):
            raise InvalidOptionError(
                f"offset {to} is meant for one queue\nhint: say which: queue_id=0", option="queue_id"
            )
        places = {number: self._place(topic, number, to) for number in queue_ids}
        for number, place in places.items():
            self._store.set_consumer_offset(topic, group, number, place)
        return places

    def _place(self, topic: str, queue_id: int, to: object) -> int:
        first, end = self._store.queue_range(topic, queue_id)
        if to is ConsumeFromWhere.FIRST:
            return first
        if to is ConsumeFromWhere.LAST:
            return end
        if isinstance(to, datetime):
            return self._store.search_offset(topic, queue_id, round(to.timestamp() * 1000))
        if isinstance(to, bool) or not isinstance(to, int):
            raise InvalidOptionError(
                f"{to!r} is no place\nhint: ConsumeFromWhere.FIRST or LAST, a datetime, or an offset with its queue_id",
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
            raise InvalidNameError(
                f"there is no consumer group {group}\nhint: the groups are {', '.join(known) or 'none'}"
            )


def _origin(said: str | None, topic: str) -> str:
    """The topic that a message came from first: as its property says, if that names one."""
    try:
        validate_topic(said or "")
    except InvalidNameError:
        return topic
    return said or topic


def _dead_letter(group: str, message: Any) -> DeadLetter:
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
        died=utc(message.store_timestamp_ms),
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
    )
