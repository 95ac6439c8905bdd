"""One queue of a consumer's share: what was read ahead of it, what is in hand, how far it is acknowledged.

In: what the broker reads. Out: messages in order, and the offset that is done. Always: the offset that is done passes
no message that is in hand or was not handed out. Not here: reading, writing offsets, threads (all under the consumer's
lock).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from txstore.message import ReceivedMessage

__all__ = ["ReadQueue", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """A topic that a consumer reads: its own, or its group's retry topic."""

    topic: str
    tags: Sequence[str] | None
    offset_group: str
    """The group under whose name its offsets are kept."""
    origin: str | None = None
    """In a retry topic: only messages that came from this topic."""


@dataclass(slots=True, eq=False)
class ReadQueue:
    """State of one queue; offsets are queue offsets."""

    source: Source
    queue_id: int
    next_offset: int
    """Where the next read begins."""
    acknowledged: int
    """The offset that the broker knows."""
    ahead: list[ReceivedMessage] = field(default_factory=list)
    """Read, and not handed out yet."""
    held: int | None = None
    """What `poll` handed out is done up to here when it is acknowledged; None: it holds nothing."""
    running: dict[int, None] = field(default_factory=dict)
    """What a pool handed out and is not done with, in order."""
    dropped: bool = False
    """It is another member's now, or was reset: acknowledging what was in hand means nothing."""
    leaving: bool = False
    """It is to be another member's: it goes when what is in hand of it is done, and nothing more is handed out."""
    not_before: float = 0.0
    """An orderly queue rests until then, after a message failed."""
    failures: int = 0
    """How often the message that an orderly queue stands at has failed."""

    @property
    def busy(self) -> bool:
        """Whether messages of it are in hand."""
        return self.held is not None or bool(self.running)

    @property
    def done(self) -> int:
        """The offset that a pool is done with: of the first that runs, else of the next; behind the last, what the tags
        passed over is done with, too."""
        for queue_offset in self.running:
            return queue_offset
        return self.ahead[0].queue_offset if self.ahead else self.next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """Up to `count` of what was read ahead."""
        taken = self.ahead[:count]
        del self.ahead[:count]
        return taken

    def rewind(self) -> None:
        """What is in hand is not done: it comes again, and all behind it."""
        self.held = None
        self.running.clear()
        self.ahead.clear()
        self.next_offset = self.acknowledged
