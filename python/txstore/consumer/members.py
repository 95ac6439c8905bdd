"""Members: the consumers of a process, group by group, and who of them holds which queue.

In: consumers that come and go. Out: the members of a group on a topic, in the order in which they came; queues handed
from one to the other. Always: one member at a time holds a queue; a forgotten consumer counts no longer; members of one
group on one topic want the same. Not here: which queues are whose (`allocation`), reading.
"""

import itertools
import threading
import weakref
from typing import TypeAlias

from txstore.errors import InvalidOptionError
from txstore.interface import ConsumerMember

__all__ = ["Members"]

_Key: TypeAlias = tuple[str, str, str, int]
"""A group, the topic that it reads, the topic of the queue (a retry topic is another), the queue."""


class Members:
    """Safe to use from many threads. A broker has one; it must not refer to that broker."""

    def __init__(self) -> None:
        # Reentrant: a member may be collected, and so leave, in a thread that is just in here.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._members: dict[int, weakref.ref[ConsumerMember]] = {}
        self._of: dict[tuple[str, str], list[int]] = {}
        self._holders: dict[_Key, int] = {}

    def add(self, consumer: ConsumerMember) -> int:
        """Its number. Raises InvalidOptionError: another member wants something else."""
        key = (consumer.group, consumer.topic)
        with self._lock:
            for other in self._all(key):
                _must_agree(consumer, other)
            number = next(self._numbers)
            self._members[number] = weakref.ref(consumer, lambda _: self._remove(number, key))
            self._of.setdefault(key, []).append(number)
            self._tell(key)
        return number

    def remove(self, consumer: ConsumerMember) -> None:
        """It leaves; one that is no member: nothing."""
        self._remove(consumer.number, (consumer.group, consumer.topic))

    def forget(self, number: int) -> None:
        """Takes back what `add` did."""
        ref = self._members.get(number)
        member = ref() if ref is not None else None
        if member is not None:
            self._remove(number, (member.group, member.topic))

    def of(self, group: str, topic: str) -> tuple[int, ...]:
        """The members of a group on a topic, in the order in which they came."""
        with self._lock:
            return tuple(self._of.get((group, topic), ()))

    def all(self) -> list[ConsumerMember]:
        with self._lock:
            return [member for ref in self._members.values() if (member := ref()) is not None]

    def lock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> bool:
        """Gives a queue to a member, if none holds it or its holder lets go of it now."""
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
        """Lets go of a queue; one that it does not hold: nothing."""
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
            self._tell(key)

    def _tell(self, key: tuple[str, str]) -> None:
        for member in self._all(key):
            member.members_changed()


def _must_agree(consumer: ConsumerMember, other: ConsumerMember) -> None:
    """Whoever shares queues must want the same of them, or messages would be passed over by who does not."""
    where = f"group {consumer.group} has a consumer of topic {consumer.topic} here that"
    if consumer.tags != other.tags:
        wanted = " || ".join(other.tags) if other.tags is not None else "*"
        raise InvalidOptionError(
            f"{where} wants the tags {wanted!r}: all members of a group want the same\n"
            "hint: give the same tags, or take another group",
            option="tags",
        )
    if consumer.message_model is not other.message_model:
        raise InvalidOptionError(
            f"{where} is {other.message_model.name}\nhint: give the same message_model, or take another group",
            option="message_model",
        )
    if consumer.instance_name is not None and consumer.instance_name == other.instance_name:
        raise InvalidOptionError(
            f"{where} has the instance name {consumer.instance_name!r} already\n"
            "hint: its offsets are kept by that name, so give each member its own",
            option="instance_name",
        )
