"""Groups: the consumers' half of a broker, the same for the embedded and the fake one.

In: groups, topics, members. Out: consumers, and what concerns a whole group: lag, resets, dead letters. Always: a
group's name is known to the store before its first consumer reads; members hear of a reset. Not here: messages.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import cast

from txstore._native import is_system_topic, validate_topic
from txstore.backlog import Backlog, DeadLetter, GroupDescription, QueueLag
from txstore.consumer.allocation import allocate_averagely
from txstore.consumer.consumer import Consumer
from txstore.consumer.members import Members
from txstore.errors import InvalidNameError, InvalidOptionError
from txstore.interface import BrokerInterface, ConsumerMember
from txstore.message import ConsumeFromWhere, MessageModel, ReceivedMessage, SentMessage

__all__ = ["ConsumerGroups"]


class ConsumerGroups:
    """What a broker inherits. `know_group(name)` sees to it that the store knows a group."""

    def __init__(self, backlog: Backlog, know_group: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._backlog = backlog
        self._know_group = know_group
        self._consumers_clock = monotonic
        self._members = Members()
        self.lock_queue = self._members.lock_queue
        self.unlock_queue = self._members.unlock_queue

    def consumer(
        self,
        group: str,
        topic: str,
        tags: str | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
    ) -> Consumer:
        """A consumer of `topic` for `group`, which shares its queues with the group's others; `tags` as `"a || b"`.

        `txstore.Consumer` says what the others mean. Raises InvalidNameError, InvalidOptionError (also: another member
        here wants something else), ReadOnlyError.
        """
        self._must_write("a consumer")
        return Consumer(
            cast("BrokerInterface", self),
            group,
            topic,
            tags,
            start=start,
            message_model=message_model,
            instance_name=instance_name,
            max_reconsume_times=max_reconsume_times,
            monotonic=self._consumers_clock,
        )

    def lag(self, group: str) -> list[QueueLag]:
        """How far a consumer group is behind, queue by queue, its retries too. Raises InvalidNameError."""
        return self._backlog.lag(group, {member.topic for member in self._members.all() if member.group == group})

    def describe_group(self, group: str) -> GroupDescription:
        """What a consumer group reads, how far it is behind, and what it gave up. Raises InvalidNameError."""
        members = [member for member in self._members.all() if member.group == group]
        return self._backlog.describe(group, {member.topic for member in members}, len(members))

    def reset_offsets(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, *, queue_id: int | None = None
    ) -> dict[int, int]:
        """Has a group go on elsewhere in a topic: at the first or last message, a time, or an offset of `queue_id`.

        Returns queue id → queue offset, on disk. Its consumers here go on there at their next read; what they have in
        hand is not acknowledged. Raises InvalidNameError, InvalidOptionError, ReadOnlyError.
        """
        self._must_write("resetting offsets")
        _not_of_the_system(topic)
        places = self._backlog.reset(group, topic, to, queue_id)
        for member in self._members.all():
            if member.group == group and member.topic == topic:
                member.offsets_reset(topic, list(places))
        self.write_offsets()
        return places

    def dead_letters(self, group: str, *, limit: int | None = None) -> list[DeadLetter]:
        """What a consumer group gave up, the oldest first. Raises InvalidNameError for an unknown group."""
        return self._backlog.dead_letters(group, limit=limit)

    def resend(self, letter: DeadLetter) -> SentMessage:
        """Gives a dead letter to its group once more; no other group sees it. Raises MessageNotFoundError."""
        self._must_write("sending")
        return self._backlog.resend(letter)

    # For consumers

    def register_consumer(self, consumer: ConsumerMember) -> int:
        """Raises InvalidNameError (a system topic), InvalidOptionError (another member wants something else)."""
        self._must_write("a consumer")
        validate_topic(consumer.topic)
        self._know_group(consumer.group)
        return self._members.add(consumer)

    def unregister_consumer(self, consumer: ConsumerMember) -> None:
        self._members.remove(consumer)

    def share_of(self, consumer: ConsumerMember, topic: str) -> Sequence[int]:
        """The queues of a topic that a member reads."""
        members = self._members.of(consumer.group, consumer.topic)
        return allocate_averagely(self.read_queues(topic), members, consumer.number)

    def send_back(
        self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int
    ) -> SentMessage:
        """Has a message come again to a group later, or parks it with the group's dead letters."""
        self._must_write("sending")
        return self._backlog.send_back(message, group, delay_level, max_reconsume_times)

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The queue offset that a group goes on from; None: it has none."""
        return self._backlog.offset(topic, group, queue_id)

    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """In memory at once, on disk soon. Raises InvalidOptionError outside the queue, InvalidNameError."""
        _not_of_the_system(topic)
        if not 0 <= queue_offset < 2**63:
            raise InvalidOptionError(
                f"queue_offset {queue_offset!r} is out of range\nhint: 0 to 2**63 - 1", option="queue_offset"
            )
        self._backlog.set_offset(topic, group, queue_id, queue_offset)

    # What the broker has

    def read_queues(self, topic: str) -> Sequence[int]:
        raise NotImplementedError

    def write_offsets(self) -> None:
        raise NotImplementedError

    def _must_write(self, what: str) -> None:
        raise NotImplementedError


def _not_of_the_system(topic: str) -> None:
    if is_system_topic(topic):
        raise InvalidNameError(f"{topic} is a system topic: no group has offsets in it")
