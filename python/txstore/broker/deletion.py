"""Deletion: deletes topics and consumer groups, or refuses with the reason.

In:     a name.
Out:    how many messages were deleted.
Always: nothing is deleted that is in use in this process or that something waits for. Each step is durable before the
        next, and the name is deleted last, so after a crash the deletion can be repeated.
Not here: the messages themselves (the engine), retention of the log.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from txstore._native import validate_group
from txstore.broker.topics import Groups, Topics
from txstore.consumer.progress import ConsumerProgress
from txstore.errors import InUseError, InvalidNameError
from txstore.interface import ConsumerMember, ProducerMember
from txstore.message import dead_letter_topic, retry_topic
from txstore.producer import Producer

__all__ = ["Deletion", "DeletionStore"]

_log = logging.getLogger("txstore.deletion")


class DeletionStore(Protocol):
    """The store of messages and offsets: the engine's."""

    def delete_queues(self, topic: str) -> int: ...
    def delayed_messages(self, topic: str) -> int: ...
    def write_offsets(self) -> None: ...


class Deletion:
    """Deletes topics and groups.

    `is_pending(topic)` tells whether the topic has a pending transaction; `consumers()` and `producers()` return those
    of this process.
    """

    def __init__(
        self,
        store: DeletionStore,
        topics: Topics,
        groups: Groups,
        progress: ConsumerProgress,
        is_pending: Callable[[str], bool],
        consumers: Callable[[], Iterable[ConsumerMember]],
        producers: Callable[[], Iterable[ProducerMember]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._progress = progress
        self._is_pending = is_pending
        self._consumers = consumers
        self._producers = producers

    def topic(self, topic: str) -> int:
        """Deletes an existing topic. Raises InvalidNameError for a group's own topic, InUseError."""
        for group in self._groups.names():
            if topic in (retry_topic(group), dead_letter_topic(group)):
                raise InvalidNameError(
                    f"topic {topic} belongs to consumer group {group}\nhint: it is deleted with its group"
                )
        self._nobody_uses(topic)
        self._nothing_waits_for(topic)
        messages = self._store.delete_queues(topic)
        self._progress.forget_topic(topic)
        self._store.write_offsets()
        self._topics.remove([topic])
        for producer in self._producers():
            producer.topics_changed()
        _log.info("topic %s was deleted, with %d messages", topic, messages, extra={"topic": topic})
        return messages

    def group(self, group: str, *, force: bool) -> int:
        """Deletes a consumer group; returns its number of dead letters. Raises InvalidNameError, InUseError."""
        validate_group(group)
        description = self._progress.describe(group, (), 0)
        if any(member.group == group for member in self._consumers()):
            raise InUseError(f"group {group} has a consumer here\nhint: close it first")
        retry, dead = retry_topic(group), dead_letter_topic(group)
        if waiting := self._store.delayed_messages(retry):
            raise InUseError(
                f"{waiting} retries of group {group} are not due yet\nhint: delete the group once they are delivered, "
                "in two hours at the latest"
            )
        if description.dead_letters and not force:
            raise InUseError(
                f"group {group} has {description.dead_letters} dead letters\n"
                "hint: inspect them, or delete them, too: delete_group(…, force=True), `txstore group delete --yes`"
            )
        self._store.delete_queues(retry)
        letters = self._store.delete_queues(dead)
        self._progress.forget_group(group)
        self._store.write_offsets()
        self._topics.remove([retry, dead])
        self._groups.remove([group])
        _log.info("group %s was deleted, with %d dead letters", group, letters, extra={"group": group})
        return letters

    def _nobody_uses(self, topic: str) -> None:
        for member in self._consumers():
            if member.topic == topic:
                raise InUseError(f"topic {topic} has a consumer of group {member.group} here\nhint: close it first")
        for producer in self._producers():
            # A producer that never sent to the topic is not affected.
            if isinstance(producer, Producer) and topic in producer.topics:
                raise InUseError(f"a producer of group {producer.group} here sends to {topic}\nhint: close it first")

    def _nothing_waits_for(self, topic: str) -> None:
        if self._is_pending(topic):
            raise InUseError(
                f"topic {topic} has pending transactions\nhint: `txstore tx list --topic {topic}` shows them; wait "
                "until they end, or end them by hand"
            )
        if waiting := self._store.delayed_messages(topic):
            raise InUseError(
                f"{waiting} delayed messages for topic {topic} are not due yet\nhint: delete the topic once they are "
                "delivered, in two hours at the latest"
            )
