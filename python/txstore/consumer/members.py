"""Members: the consumers of a process by group, and which of them holds which queue.

In:     consumers that register and leave.
Out:    the members of a group on a topic, in the order of registration; queues that pass from one to the other.
Always: one member at a time holds a queue. A garbage-collected consumer is no longer a member. All members of one group
        on one topic have the same subscription.
Not here: the assignment of queues (`allocation`), reading.
"""

import itertools
import threading
import weakref
from typing import TypeAlias

from txstore.errors import InvalidOptionError
from txstore.interface import ConsumerMember
from txstore.selector import expression

__all__ = ["Members"]

_Key: TypeAlias = tuple[str, str, str, int]
"""A group, the topic that it reads, the topic of the queue (which may be the retry topic), the queue id."""


class Members:
    """The members of all groups at one broker, to which it must not refer. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant, because a member may be garbage-collected, and so leave, in a thread that holds this lock.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._members: dict[int, weakref.ref[ConsumerMember]] = {}
        self._of: dict[tuple[str, str], list[int]] = {}
        self._holders: dict[_Key, int] = {}

    def add(self, consumer: ConsumerMember) -> int:
        """Registers a consumer and returns its id. Raises InvalidOptionError if its subscription differs."""
        key = (consumer.group, consumer.topic)
        with self._lock:
            for other in self._all(key):
                _must_agree(consumer, other)
            number = next(self._numbers)
            self._members[number] = weakref.ref(consumer, lambda _: self._remove(number, key))
            self._of.setdefault(key, []).append(number)
            self._notify(key)
        return number

    def remove(self, consumer: ConsumerMember) -> None:
        """Removes a consumer. Unknown consumers are ignored."""
        self._remove(consumer.number, (consumer.group, consumer.topic))

    def forget(self, number: int) -> None:
        """Undoes `add`."""
        ref = self._members.get(number)
        member = ref() if ref is not None else None
        if member is not None:
            self._remove(number, (member.group, member.topic))

    def of(self, group: str, topic: str) -> tuple[int, ...]:
        """Returns the members of a group on a topic, in the order of registration."""
        with self._lock:
            return tuple(self._of.get((group, topic), ()))

    def all(self) -> list[ConsumerMember]:
        """Returns all members of all groups."""
        with self._lock:
            return [member for ref in self._members.values() if (member := ref()) is not None]

    def apply_decisions(self) -> None:
        """Acknowledges or sends back the messages for which `ack` or `nack` was called, as far as nobody waits."""
        for member in self.all():
            member.apply_decisions()

    def lock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> bool:
        """Locks a queue for a member, if no other member holds it or its holder releases it now."""
        key = (consumer.group, consumer.topic, topic, queue_id)
        with self._lock:
            holder = self._holders.get(key)
            if holder is not None and holder != consumer.number:
                ref = self._members.get(holder)
                member = ref() if ref is not None else None
                if member is not None and not member.release(topic, queue_id):
                    return False
            self._holders[key] = consumer.number
            return True

    def unlock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> None:
        """Releases a queue. Ignored if the member does not hold it."""
        key = (consumer.group, consumer.topic, topic, queue_id)
        with self._lock:
            if self._holders.get(key) == consumer.number:
                del self._holders[key]

    def _all(self, key: tuple[str, str]) -> list[ConsumerMember]:
        refs = [self._members[number] for number in self._of.get(key, ())]
        return [member for ref in refs if (member := ref()) is not None]

    def _remove(self, number: int, key: tuple[str, str]) -> None:
        with self._lock:
            if self._members.pop(number, None) is None:
                return
            self._of[key].remove(number)
            self._holders = {queue: holder for queue, holder in self._holders.items() if holder != number}
            self._notify(key)

    def _notify(self, key: tuple[str, str]) -> None:
        for member in self._all(key):
            member.members_changed()


def _must_agree(consumer: ConsumerMember, other: ConsumerMember) -> None:
    """Members that share queues must have the same subscription, or the others would skip a member's messages."""
    where = f"in group {consumer.group}, another consumer of topic {consumer.topic}"
    if consumer.tags != other.tags:
        raise InvalidOptionError(
            f"{where} has the tags {expression(other.tags)!r}: all members of a group must have the same\n"
            "hint: pass the same tags, or use another group",
            option="tags",
        )
    if consumer.message_model is not other.message_model:
        raise InvalidOptionError(
            f"{where} is {other.message_model.name}\nhint: pass the same message_model, or use another group",
            option="message_model",
        )
    if consumer.instance_name is not None and consumer.instance_name == other.instance_name:
        raise InvalidOptionError(
            f"{where} already has the instance name {consumer.instance_name!r}\n"
            "hint: its offsets are kept under that name, so give each member a different one",
            option="instance_name",
        )
