"""Groups: the consumers' part of a broker, shared by all kinds of brokers.

In:     groups, topics, members.
Out:    consumers, and operations on a whole group: lag, resets, dead letters.
Always: the store knows a group before its first consumer reads. Members are told of a reset.
Not here: messages.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import cast

from txstore._native import is_system_topic, validate_topic
from txstore.config import must_not_be_negative
from txstore.consumer.allocation import allocate_averagely
from txstore.consumer.consumer import Consumer
from txstore.consumer.members import Members
from txstore.consumer.progress import ConsumerProgress, DeadLetter, GroupDescription, QueueLag
from txstore.consumer.subscription import Topics
from txstore.errors import InvalidNameError
from txstore.interface import BrokerInterface, ConsumerMember
from txstore.message import ConsumeFromWhere, MessageModel, ReceivedMessage, SentMessage
from txstore.selector import Sql

__all__ = ["ConsumerGroups"]


class ConsumerGroups:
    """The base class of brokers with consumers. `know_group(name)` makes sure that the store knows a group."""

    def __init__(
        self, progress: ConsumerProgress, know_group: Callable[[str], None], monotonic: Callable[[], float]
    ) -> None:
        self._progress = progress
        self._know_group = know_group
        self._consumers_clock = monotonic
        self._members = Members()
        self.lock_queue: Callable[[ConsumerMember, str, int], bool] = self._members.lock_queue
        self.unlock_queue: Callable[[ConsumerMember, str, int], None] = self._members.unlock_queue

    def consumer(
        self,
        group: str,
        topic: Topics,
        tags: str | Sql | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
    ) -> Consumer:
        """Creates a consumer of `topic` for `group`, which shares its queues with the group's other members.

        `topic` is a name, several names, a dict of names and tags, or a compiled pattern. `tags` is `"a || b"` or Sql.
        `txstore.Consumer` describes the other arguments. Raises InvalidNameError, InvalidOptionError (also if another
        member in this process has a different subscription), ReadOnlyError.
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
        """Returns a consumer group's lag by queue, including its retries. Raises InvalidNameError."""
        self._members.apply_decisions()
        return self._progress.lag(group, {member.topic for member in self._members.all() if member.group == group})

    def lag_by_group(self) -> dict[str, list[QueueLag]]:
        """Returns the lag of every consumer group. Faster than `lag` for each of them."""
        self._members.apply_decisions()
        topics: dict[str, set[str]] = {}
        for member in self._members.all():
            topics.setdefault(member.group, set()).add(member.topic)
        return self._progress.lag_by_group(topics)

    def describe_group(self, group: str) -> GroupDescription:
        """Describes a consumer group: its topics, lag, members and dead letters. Raises InvalidNameError."""
        self._members.apply_decisions()
        members = [member for member in self._members.all() if member.group == group]
        return self._progress.describe(
            group, {member.topic for member in members}, len({member.reader for member in members})
        )

    def reset_offsets(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, *, queue_id: int | None = None
    ) -> dict[int, int]:
        """Moves a group in a topic: to the first or last message, to a time, or to an offset of `queue_id`.

        Returns queue id → queue offset, which are on disk. Its consumers in this process continue there at their next
        read; messages that they have not acknowledged yet are not acknowledged. Raises InvalidNameError,
        InvalidOptionError, ReadOnlyError.
        """
        self._must_write("resetting offsets")
        _must_not_be_system_topic(topic)
        offsets = self._progress.reset(group, topic, to, queue_id)
        for member in self._members.all():
            if member.group == group and member.topic == topic:
                member.offsets_reset(topic, list(offsets))
        self.write_offsets()
        return offsets

    def dead_letters(self, group: str, *, limit: int | None = None) -> list[DeadLetter]:
        """Returns a consumer group's dead letters, oldest first. Raises InvalidNameError for an unknown group."""
        return self._progress.dead_letters(group, limit=limit)

    def resend(self, letter: DeadLetter) -> SentMessage:
        """Delivers a dead letter to its group again, and to no other group. Raises MessageNotFoundError."""
        self._must_write("sending")
        return self._progress.resend(letter)

    # For consumers

    def register_consumer(self, consumer: ConsumerMember) -> int:
        """Registers a consumer and returns its id. Raises InvalidNameError (a system topic), InvalidOptionError
        (another member has a different subscription)."""
        self._must_write("a consumer")
        validate_topic(consumer.topic)
        self._know_group(consumer.group)
        return self._members.add(consumer)

    def unregister_consumer(self, consumer: ConsumerMember) -> None:
        """Removes a consumer from its group. Unknown consumers are ignored."""
        self._members.remove(consumer)

    def share_of(self, consumer: ConsumerMember, topic: str) -> Sequence[int]:
        """Returns the queues of a topic that are assigned to a member."""
        members = self._members.of(consumer.group, consumer.topic)
        return allocate_averagely(self.read_queues(topic), members, consumer.number)

    def send_back(
        self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int
    ) -> SentMessage:
        """Delivers a message to a group again later, or moves it to the group's dead letters."""
        self._must_write("sending")
        return self._progress.send_back(message, group, delay_level, max_reconsume_times)

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Returns the queue offset that a group reads next; None if it has none."""
        return self._progress.offset(topic, group, queue_id)

    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Sets an offset, in memory at once and on disk soon. Raises InvalidOptionError outside the queue,
        InvalidNameError."""
        _must_not_be_system_topic(topic)
        must_not_be_negative("queue_offset", queue_offset)
        self._progress.set_offset(topic, group, queue_id, queue_offset)

    # Provided by the broker

    def subscribable_topics(self) -> Sequence[str]:
        raise NotImplementedError

    def read_queues(self, topic: str) -> Sequence[int]:
        raise NotImplementedError

    def write_offsets(self) -> None:
        raise NotImplementedError

    def _must_write(self, what: str) -> None:
        raise NotImplementedError


def _must_not_be_system_topic(topic: str) -> None:
    if is_system_topic(topic):
        raise InvalidNameError(f"{topic} is a system topic: no group has offsets in it")
