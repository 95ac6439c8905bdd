"""The seam: what a producer or consumer may ask of a broker, and a broker of them.

In and out: messages, offsets, names. Always: no class of the store appears, so that a remote broker and a fake one
fit as well as the embedded one. Not here: any behaviour.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from txstore.listener import Checker
from txstore.message import LocalTransactionState, Message, MessageModel, ReceivedMessage, SentMessage

__all__ = ["BrokerInterface", "ConsumerMember", "EndedTransaction", "ProducerMember", "Pull"]


class Pull(Protocol):
    """Reads a queue for one consumer to hand out: `retry` can be asked for, and a retried message has its own topic."""

    def __call__(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[Sequence[ReceivedMessage], int]:
        """As `BrokerInterface.read`."""


class EndedTransaction(Protocol):
    """What ending a transaction did."""

    @property
    def outcome(self) -> str:
        """'committed', 'rolled_back' or 'discarded'."""

    @property
    def already(self) -> bool:
        """Whether it had ended so before, and nothing was written."""


class ProducerMember(Protocol):
    """A producer as a broker knows it: a member of a group, which may be asked about the group's transactions."""

    @property
    def group(self) -> str: ...
    @property
    def number(self) -> int:
        """What names it among the living, above 0; 0 before it is registered."""

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """Who answers a check about a message of this topic and tag; None: this producer cannot."""

    def topics_changed(self) -> None:
        """The queues of a topic are others than before."""

    def close(self) -> None: ...


class ConsumerMember(Protocol):
    """A consumer as a broker knows it: a member of a group, which shares a topic's queues with the others."""

    @property
    def group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def tags(self) -> Sequence[str] | None: ...
    @property
    def message_model(self) -> MessageModel: ...
    @property
    def instance_name(self) -> str | None: ...
    @property
    def orderly(self) -> bool:
        """Whether it deals with a queue's messages in order, so that nobody else may have the queue meanwhile."""

    @property
    def number(self) -> int:
        """What names it among the living, above 0; 0 before it is registered."""

    def members_changed(self) -> None:
        """The queues are to be shared anew."""

    def release(self, topic: str, queue_id: int) -> bool:
        """Lets go of a queue for another member, if nothing of it is in hand; never waits."""

    def offsets_reset(self, topic: str, queue_ids: Sequence[int]) -> None:
        """The group's offsets in these queues were set anew."""

    def close(self) -> None: ...


class BrokerInterface(Protocol):
    """What producers and consumers ask of a broker. Every call may raise a TxStoreError."""

    # Producers
    def appender(self, producer_group: str) -> Callable[[Message, int], SentMessage]:
        """What stores a group's messages, each in a queue that `write_queues` names."""

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str
    ) -> Sequence[SentMessage]:
        """All or none."""

    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int, /) -> SentMessage:
        """Stores a half message; the result is its handle. Its local transaction runs in `owner` until it is ended."""

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndedTransaction:
        """Commits or rolls back, by id or by what `prepare` returned."""

    def end_half(self, half: SentMessage, /, *, commit: bool, producer_group: str | None = None) -> EndedTransaction:
        """Commits or rolls back the transaction whose handle `prepare` returned."""

    def local_transaction_ended(self, half: SentMessage, /) -> None:
        """Counts the transaction's age from now on, so that it will be checked."""

    def write_queues(self, topic: str) -> Sequence[int]:
        """Queue ids that may be sent to; makes the topic where that is allowed. Raises InvalidNameError."""

    def register_producer(self, producer: ProducerMember) -> int:
        """The producer's number, above 0."""

    def unregister_producer(self, producer: ProducerMember) -> None: ...

    # Consumers
    def read_queues(self, topic: str) -> Sequence[int]:
        """Queue ids that may be read; none of a topic that is not there."""

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Sequence[str] | None = None
    ) -> tuple[Sequence[ReceivedMessage], int]:
        """Visible messages in order, and the queue offset to go on from. Raises OffsetTooOldError."""

    def puller(self, consumer: ConsumerMember) -> Pull:
        """What reads for a consumer that is registered, until it is forgotten or leaves."""

    def send_back(self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int, /) -> object:
        """Has a message come again to a group after a delay: 0 by how often it came, else a level; parks it with the
        group's dead letters if it came as often as that, or for -1."""

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first queue offset whose message was stored at that time or later; the queue's end if none was."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First queue offset left, and one past the last visible."""

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits until something is visible above `physical_offset`, or the time is over; returns how far it is now.

        A remote broker's client counts what came instead of bytes; 0 is below either.
        """

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None: ...
    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None: ...
    def write_offsets(self) -> None: ...
    def register_consumer(self, consumer: ConsumerMember) -> int:
        """The consumer's number, above 0. Raises InvalidOptionError if another member wants something else."""

    def share_of(self, consumer: ConsumerMember, topic: str) -> Sequence[int]:
        """The queues of a topic, its own or its retry topic, that are a member's share; each has one member."""

    def lock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> bool:
        """Whether the consumer may read a queue of its group: no other member holds it, or the holder let go."""

    def unlock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> None: ...

    def unregister_consumer(self, consumer: ConsumerMember) -> None: ...
