"""One queue of a consumer: messages read ahead, messages not acknowledged yet, and the acknowledged offset.

In:     the messages that the broker reads.
Out:    messages in order, and the offset up to which all are done.
Always: that offset never passes a message that is unacknowledged or was not handed out.
Not here: reading, writing offsets, threads (the consumer's lock guards all of this).
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from txstore.interface import ConsumerMember, Pull
from txstore.message import ReceivedMessage
from txstore.selector import Selector

__all__ = ["QueueKey", "ReadQueue", "Source"]

QueueKey: TypeAlias = tuple[str, str, int]
"""The consumer's own topic, the topic of the queue (which may be the retry topic), the queue id."""


@dataclass(frozen=True, slots=True)
class Source:
    """A topic that a consumer reads: its own, or its group's retry topic."""

    topic: str
    tags: Selector
    offset_group: str
    """The name under which its offsets are stored."""
    member: ConsumerMember
    """The consumer as a member in its own topic."""
    read: Pull
    origin: str | None = None
    """In a retry topic: take only messages that came from this topic."""


@dataclass(slots=True, eq=False)
class ReadQueue:
    """The state of one queue. Offsets are queue offsets."""

    source: Source
    queue_id: int
    next_offset: int
    """The offset of the next read."""
    acknowledged: int
    """The offset that the broker has."""
    ahead: list[ReceivedMessage] = field(default_factory=list)
    """Messages that were read and not handed out yet."""
    held: int | None = None
    """The offset to acknowledge for the messages that `poll` handed out; None if there are none."""
    decided: set[int] = field(default_factory=set)
    """The offsets, from the acknowledged one on, of messages that `ack` or `nack` has ended. They are not handed out
    again, while earlier ones are."""
    running: dict[int, None] = field(default_factory=dict)
    """The offsets of messages that a pool is handling, in order."""
    dropped: bool = False
    """Whether it was assigned to another member or reset, so that acknowledging its messages has no effect."""
    leaving: bool = False
    """Whether it is assigned to another member: it hands out nothing more and leaves when its messages are done."""
    not_before: float = 0.0
    """When an orderly queue may continue after a message failed."""
    failures: int = 0
    """How often the current message of an orderly queue has failed."""

    @property
    def key(self) -> QueueKey:
        """What identifies it in its consumer, which reads a retry topic once for each of its own topics."""
        return self.source.member.topic, self.source.topic, self.queue_id

    @property
    def busy(self) -> bool:
        """Whether some of its messages are unacknowledged."""
        return self.held is not None or bool(self.running)

    @property
    def done(self) -> int:
        """The offset up to which a pool is done: the first running message, otherwise the next one to hand out. After
        the last message it also passes those that the tags excluded."""
        for queue_offset in self.running:
            return queue_offset
        return self.ahead[0].queue_offset if self.ahead else self.next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """Returns up to `count` of the messages that were read ahead."""
        taken = self.ahead[:count]
        del self.ahead[:count]
        return taken

    def rewind(self) -> None:
        """Returns to the acknowledged offset, so that unacknowledged messages are delivered again."""
        self.held = None
        self.running.clear()
        self.ahead.clear()
        self.next_offset = self.acknowledged
