"""Subscription: the topics that a consumer reads, and its membership in each of them.

In:     a topic, several, topics with tags, or a pattern of names.
Out:    topics with their tags; what the broker sees of a consumer in one topic.
Always: a pattern matches whole names. A member does not keep its consumer alive.
Not here: reading, offsets.
"""

import re
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol, TypeAlias

from txstore._native import DEAD_LETTER_PREFIX, RETRY_PREFIX, validate_topic
from txstore.errors import InvalidOptionError
from txstore.message import MessageModel
from txstore.selector import Selector, Sql, parse_selector

__all__ = ["Subscription", "TopicMember", "Topics"]

Topics: TypeAlias = str | Sequence[str] | Set[str] | Mapping[str, str | Sql | None] | re.Pattern[str]
"""A topic, several topics, several with their own tags, or a pattern that matches their whole names."""


class Subscription:
    """The topics that a consumer asked for. Raises InvalidOptionError, InvalidNameError."""

    def __init__(self, topics: Topics, tags: str | Sql | None) -> None:
        self.pattern: re.Pattern[str] | None = None
        """What the names of topics must match; None if they are given."""
        self.named: dict[str, Selector] = {}
        """The topics that were given, with their tags."""
        self.tags: Selector = parse_selector(tags)
        """The tags of all topics that have none of their own; None for all messages."""
        if isinstance(topics, str):
            self.named[topics] = self.tags
        elif isinstance(topics, re.Pattern):
            self.pattern = _of_text(topics)
        elif isinstance(topics, Mapping):
            if tags is not None:
                raise InvalidOptionError(
                    f"each topic of {dict(topics)!r} has its own tags, got tags={tags!r}, too\n"
                    "hint: pass a list of topics with tags, or a dict without",
                    option="tags",
                )
            self.named = {_topic(topic): parse_selector(own) for topic, own in topics.items()}
        else:
            self.named = {_topic(topic): self.tags for topic in _several(topics)}
        if not self.named and self.pattern is None:
            raise _wrong(topics)
        for topic in self.named:
            validate_topic(topic)

    def __str__(self) -> str:
        return repr(self.pattern.pattern) if self.pattern is not None else ", ".join(self.named)

    def matches(self, topic: str) -> bool:
        """Tells whether the pattern matches a topic's whole name. It matches no retries and dead letters of groups."""
        if self.pattern is None or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            return False
        return self.pattern.fullmatch(topic) is not None


class _Reader(Protocol):
    """The part of the consumer that its members use."""

    @property
    def group(self) -> str: ...
    @property
    def message_model(self) -> MessageModel: ...
    @property
    def instance_name(self) -> str | None: ...
    @property
    def orderly(self) -> bool: ...
    def members_changed(self) -> None: ...
    def release(self, own_topic: str, topic: str, queue_id: int) -> bool: ...
    def apply_decisions(self) -> None: ...
    def offsets_reset(self, own_topic: str, topic: str, queue_ids: Sequence[int]) -> None: ...
    def close(self) -> None: ...


class TopicMember:
    """A consumer as a member of its group in one topic (`interface.ConsumerMember`)."""

    def __init__(self, consumer: _Reader, topic: str, tags: Selector) -> None:
        self._consumer = weakref.ref(consumer)
        self.reader: int = id(consumer)
        self.group: str = consumer.group
        self.topic: str = topic
        self.tags: Selector = tags
        self.message_model: MessageModel = consumer.message_model
        self.instance_name: str | None = consumer.instance_name
        self.number: int = 0

    def __repr__(self) -> str:
        return repr(self._consumer() or f"Consumer(group={self.group!r}, topic={self.topic!r})")

    @property
    def orderly(self) -> bool:
        consumer = self._consumer()
        return consumer is not None and consumer.orderly

    def members_changed(self) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer.members_changed()

    def release(self, topic: str, queue_id: int) -> bool:
        consumer = self._consumer()
        return consumer is None or consumer.release(self.topic, topic, queue_id)

    def apply_decisions(self) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer.apply_decisions()

    def offsets_reset(self, topic: str, queue_ids: Sequence[int]) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer.offsets_reset(self.topic, topic, queue_ids)

    def close(self) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer.close()


def _several(topics: object) -> Iterable[object]:
    if not isinstance(topics, Iterable) or isinstance(topics, bytes):
        raise _wrong(topics)
    return topics


def _topic(topic: object) -> str:
    if not isinstance(topic, str):
        raise _wrong(topic)
    return topic


def _of_text(pattern: re.Pattern[str]) -> re.Pattern[str]:
    if not isinstance(pattern.pattern, str):
        raise _wrong(pattern)
    return pattern


def _wrong(topics: object) -> InvalidOptionError:
    return InvalidOptionError(
        f"topic must be the name of a topic, several names, or a compiled pattern, got {topics!r}\n"
        'hint: "orders", ["orders", "payments"], {"orders": "paid", "payments": None} or re.compile("orders-.*")',
        option="topic",
    )
