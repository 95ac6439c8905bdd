"""Broker interface: the calls between producers or consumers and a broker.

In and out: messages, offsets, names.
Always: no class of the store appears, so embedded, remote and fake brokers all fit.
Not here: any behaviour.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from txstore.listener import Checker
from txstore.message import (
    Half,
    LocalTransactionState,
    Message,
    MessageModel,
    ReceivedMessage,
    SentMessage,
    TransactionState,
)
from txstore.selector import Selector

__all__ = ["BrokerInterface", "ConsumerMember", "EndedTransaction", "ProducerMember", "Pull"]


class Pull(Protocol):
    """Reads a queue for a consumer. Its messages support `retry`, and a retried message shows its own topic."""

    def __call__(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Selector = None
    ) -> tuple[Sequence[ReceivedMessage], int]:
        """Reads as `BrokerInterface.read` does."""


class EndedTransaction(Protocol):
    """The result of ending a transaction."""

    @property
    def outcome(self) -> TransactionState:
        """How the transaction ended: COMMITTED, ROLLED_BACK or DISCARDED."""

    @property
    def already(self) -> bool:
        """Whether it had already ended this way, so that nothing was written."""


class ProducerMember(Protocol):
    """A producer as a broker sees it: a member of a group that can be asked about the group's transactions."""

    @property
    def group(self) -> str: ...
    @property
    def number(self) -> int:
        """Its id at the broker, above 0; 0 before it is registered."""

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """Returns the checker for a message of this topic and tag; None if this producer has none."""

    def topics_changed(self) -> None:
        """Tells the producer that the queues of a topic have changed."""

    def close(self) -> None: ...


class ConsumerMember(Protocol):
    """A consumer as a broker sees it: a member of a group that shares a topic's queues with the others."""

    @property
    def group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def tags(self) -> Selector: ...
    @property
    def message_model(self) -> MessageModel: ...
    @property
    def instance_name(self) -> str | None: ...
    @property
    def reader(self) -> int:
        """Identifies the consumer, which may be a member in several topics."""

    @property
    def orderly(self) -> bool:
        """Whether it handles a queue's messages in order, so that no other member may have the queue meanwhile."""

    @property
    def number(self) -> int:
        """Its id at the broker, above 0; 0 before it is registered."""

    def members_changed(self) -> None:
        """Tells the consumer that the group's queues must be assigned again."""

    def release(self, topic: str, queue_id: int) -> bool:
        """Releases a queue for another member, if none of its messages is unacknowledged. Never waits."""

    def apply_decisions(self) -> None:
        """Acknowledges or sends back the messages for which `ack` or `nack` was called. Never waits for the thread that
        reads."""

    def offsets_reset(self, topic: str, queue_ids: Sequence[int]) -> None:
        """Tells the consumer that the group's offsets in these queues were reset."""

    def close(self) -> None: ...


class BrokerInterface(Protocol):
    """The calls that producers and consumers make on a broker. Every call may raise a TxStoreError."""

    # Producers
    def appender(self, producer_group: str) -> Callable[[Message, int], SentMessage]:
        """Returns the call that stores a group's messages, each in one of the queues of `write_queues`."""

    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str
    ) -> Sequence[SentMessage]:
        """Stores several messages, either all or none."""

    def recall(self, handle: str, /) -> str:
        """Ends the wait of a message for its time, so that it is never delivered. Returns its unique id.

        Raises InvalidMessageError for text that is not a recall handle, MessageNotFoundError if no such message waits.
        """

    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int, /) -> Half:
        """Stores a half message and returns its handle. `owner` runs its local transaction until it is ended."""

    def prepare_many(self, messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int, /) -> Half:
        """Stores the half messages of one transaction, either all or none. Returns the handle of the first.

        Raises EmbeddedOnlyError if the broker is RocketMQ's.
        """

    def end(self, half: Half, state: LocalTransactionState, producer_group: str, /) -> EndedTransaction:
        """Commits or rolls back the transaction of a half message, for the producer group that began it."""

    def local_transaction_ended(self, half: Half, /) -> None:
        """Starts the transaction's age now, so that it will be checked."""

    def write_queues(self, topic: str) -> Sequence[int]:
        """Returns the ids of writable queues; creates the topic where that is allowed. Raises InvalidNameError."""

    def register_producer(self, producer: ProducerMember) -> int:
        """Registers the producer and returns its id (> 0). Idempotent."""

    def unregister_producer(self, producer: ProducerMember) -> None: ...

    # Consumers
    def subscribable_topics(self) -> Sequence[str]:
        """Returns the names of all topics that consumers may read, as far as they are known now."""

    def read_queues(self, topic: str) -> Sequence[int]:
        """Returns the ids of readable queues; empty for an unknown topic."""

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Selector = None
    ) -> tuple[Sequence[ReceivedMessage], int]:
        """Returns visible messages in order, and the queue offset to read next. Raises OffsetTooOldError."""

    def puller(self, consumer: ConsumerMember) -> Pull:
        """Returns the call that reads for a registered consumer, until it is unregistered."""

    def send_back(self, message: ReceivedMessage, group: str, delay_level: int, max_reconsume_times: int, /) -> object:
        """Delivers a message to a group again after a delay: by the number of deliveries for 0, otherwise the given
        level. Moves it to the group's dead letters after `max_reconsume_times` deliveries, or for -1."""

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first queue offset stored at that time or later; the end of the queue if there is none."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the first queue offset left, and the one after the last visible message."""

    def wait(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits until something above `physical_offset` is visible, or for the timeout; returns the new value.

        A remote client counts arrivals instead of bytes. 0 is below either.
        """

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None: ...
    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None: ...
    def write_offsets(self) -> None: ...
    def register_consumer(self, consumer: ConsumerMember) -> int:
        """Registers the consumer and returns its id (> 0). Raises InvalidOptionError if it disagrees with a member."""

    def share_of(self, consumer: ConsumerMember, topic: str) -> Sequence[int]:
        """Returns the queues of a topic, or of the retry topic, assigned to this member. Each queue has one member."""

    def lock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> bool:
        """Locks a queue for the consumer; returns False while another member holds it and does not release it."""

    def unlock_queue(self, consumer: ConsumerMember, topic: str, queue_id: int) -> None: ...

    def unregister_consumer(self, consumer: ConsumerMember) -> None: ...
