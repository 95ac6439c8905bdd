"""Deletion: topics and consumer groups that go, and why one must stay.

In: a name. Out: how many messages went. Always: nothing goes that somebody here still uses or that something waits for;
each step is durable before the next, the name goes last, so that a crash leaves what can be deleted again. Not here:
the messages themselves (the engine), retention of the log.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from txstore._native import validate_group
from txstore.backlog import Backlog
from txstore.errors import InUseError, InvalidNameError
from txstore.interface import ConsumerMember, ProducerMember
from txstore.message import dead_letter_topic, retry_topic
from txstore.producer import Producer
from txstore.topics import Groups, Topics

__all__ = ["Deletion", "DeletionStore"]

_log = logging.getLogger("txstore.deletion")


class DeletionStore(Protocol):
    """What holds messages and offsets: the engine's store."""

    def delete_queues(self, topic: str) -> int: ...
    def delayed_messages(self, topic: str) -> int: ...
    def write_offsets(self) -> None: ...


class Deletion:
    """`is_pending(topic)`: whether a transaction of it pends; `consumers()`, `producers()`: those of this process."""

    def __init__(
        self,
        store: DeletionStore,
        topics: Topics,
        groups: Groups,
        backlog: Backlog,
        is_pending: Callable[[str], bool],
        consumers: Callable[[], Iterable[ConsumerMember]],
        producers: Callable[[], Iterable[ProducerMember]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._backlog = backlog
        self._is_pending = is_pending
        self._consumers = consumers
        self._producers = producers

    def topic(self, topic: str) -> int:
        """Deletes a topic that is there. Raises InvalidNameError (one of a group's), InUseError."""
        for group in self._groups.names():
            if topic in (retry_topic(group), dead_letter_topic(group)):
                raise InvalidNameError(f"{topic} belongs to consumer group {group}\nhint: it goes with its group")
        self._nobody_uses(topic)
        self._nothing_waits_for(topic)
        messages = self._store.delete_queues(topic)
        self._backlog.forget_topic(topic)
        self._store.write_offsets()
        self._topics.remove([topic])
        for producer in self._producers():
            producer.topics_changed()
        _log.info("topic %s was deleted, with %d messages", topic, messages, extra={"topic": topic})
        return messages

    def group(self, group: str, *, force: bool) -> int:
        """Deletes a consumer group; how many dead letters went. Raises InvalidNameError (unknown), InUseError."""
        validate_group(group)
        description = self._backlog.describe(group, (), 0)
        if any(member.group == group for member in self._consumers()):
            raise InUseError(f"group {group} has a consumer here\nhint: close it first")
        again, dead = retry_topic(group), dead_letter_topic(group)
        if waiting := self._store.delayed_messages(again):
            raise InUseError(
                f"{waiting} retries of group {group} wait for their time\nhint: delete it when they have come, in two "
                "hours at the latest"
            )
        if description.dead_letters and not force:
            raise InUseError(
                f"group {group} has {description.dead_letters} dead letters\n"
                "hint: look at them, or delete them with it: delete_group(…, force=True), `txstore group delete --yes`"
            )
        self._store.delete_queues(again)
        letters = self._store.delete_queues(dead)
        self._backlog.forget_group(group)
        self._store.write_offsets()
        self._topics.remove([again, dead])
        self._groups.remove([group])
        _log.info("group %s was deleted, with %d dead letters", group, letters, extra={"group": group})
        return letters

    def _nobody_uses(self, topic: str) -> None:
        for member in self._consumers():
            if member.topic == topic:
                raise InUseError(f"topic {topic} has a consumer of group {member.group} here\nhint: close it first")
        for producer in self._producers():
            # One that never sent to it learns nothing by its going.
            if isinstance(producer, Producer) and topic in producer.topics:
                raise InUseError(f"a producer of group {producer.group} here sends to {topic}\nhint: close it first")

    def _nothing_waits_for(self, topic: str) -> None:
        if self._is_pending(topic):
            raise InUseError(
                f"transactions of topic {topic} pend\nhint: `txstore tx list --topic {topic}` shows them; let them "
                "end, or end them by hand"
            )
        if waiting := self._store.delayed_messages(topic):
            raise InUseError(
                f"{waiting} delayed messages wait for topic {topic}\nhint: delete it when they have come, in two hours "
                "at the latest"
            )
