"""The seam: what a producer or consumer may ask of a broker, and a broker of them.

In and out: messages, offsets, names. Always: no class of the store appears, so that a remote broker and a fake one
fit as well as the embedded one. Not here: any behaviour.
"""

from collections.abc import Sequence
from typing import Protocol

from txstore.listener import Checker
from txstore.message import LocalTransactionState, Message, ReceivedMessage, SentMessage

__all__ = ["BrokerInterface", "ConsumerMember", "EndedTransaction", "ProducerMember"]


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
    """A consumer as a broker knows it."""

    @property
    def group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    def close(self) -> None: ...


class BrokerInterface(Protocol):
    """What producers and consumers ask of a broker. Every call may raise a TxStoreError."""

    # Producers
    def append(self, message: Message, queue_id: int, /) -> SentMessage: ...
    def append_many(self, messages: Sequence[Message], queue_ids: Sequence[int]) -> Sequence[SentMessage]:
        """All or none."""

    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int, /) -> SentMessage:
        """Stores a half message; its local transaction runs in `owner` until `local_transaction_ended`."""

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndedTransaction:
        """Commits or rolls back, by id or by what `prepare` returned."""

    def end_half(
        self,
        half_queue_offset: int,
        prepared_transaction_offset: int,
        /,
        *,
        commit: bool,
        producer_group: str | None = None,
    ) -> EndedTransaction:
        """Commits or rolls back, by where the half was stored."""

    def local_transaction_ended(self, half_queue_offset: int) -> None: ...
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

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First queue offset left, and one past the last visible."""

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits until the visible end is above `physical_offset`, or the time is over; returns the visible end."""

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None: ...
    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None: ...
    def write_offsets(self) -> None: ...
    def register_consumer(self, consumer: ConsumerMember) -> None:
        """Raises InvalidOptionError if the group has a member on the topic here."""

    def unregister_consumer(self, consumer: ConsumerMember) -> None: ...
