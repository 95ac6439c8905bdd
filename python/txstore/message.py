"""The nouns of messaging: messages, what a send returns, and the enums of RocketMQ's words.

In: values from the engine. Out: the classes a user imports. Always: immutable; an enum where RocketMQ has one, with
RocketMQ's own spelling as an alias. Not here: checking a message (the engine does when it is made), storing it.
"""

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from txstore._native import Message, SendResult, StoredMessage
from txstore.config import FlushDiskType

__all__ = [
    "ConsumeFromWhere",
    "ConsumeResult",
    "FlushDiskType",
    "HalfMessage",
    "LocalTransactionState",
    "Message",
    "MessageModel",
    "MessageQueue",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "SentMessage",
    "StoredMessage",
    "TransactionMessage",
    "TransactionSendResult",
    "TransactionState",
    "dead_letter_topic",
    "is_retry_progress",
    "retry_group",
    "retry_topic",
    "utc",
]

_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
_HIDING = ("REAL_TOPIC", "REAL_QID")


class LocalTransactionState(enum.Enum):
    """What became of the local transaction: a listener's answer."""

    COMMIT = "COMMIT"
    """It committed: deliver the message."""
    ROLLBACK = "ROLLBACK"
    """It did not happen, and will not: drop the message."""
    UNKNOWN = "UNKNOWN"
    """Not known yet: ask again later."""

    COMMIT_MESSAGE = COMMIT
    ROLLBACK_MESSAGE = ROLLBACK
    UNKNOW = UNKNOWN


class SendStatus(enum.Enum):
    """How safe a sent message is. An embedded store has no slaves, so a send that returns is always SEND_OK."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class TransactionState(enum.StrEnum):
    """What the log says of a transaction. All but PENDING are final."""

    PENDING = "pending"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    DISCARDED = "discarded"
    FINISHED_UNKNOWN = "finished_unknown"
    """A broker finished it and left no trace of how."""


class ConsumeFromWhere(enum.Enum):
    """Where a consumer group begins in a queue that it has no offset of."""

    CONSUME_FROM_FIRST_OFFSET = "first"
    CONSUME_FROM_LAST_OFFSET = "last"

    FIRST = CONSUME_FROM_FIRST_OFFSET
    LAST = CONSUME_FROM_LAST_OFFSET


class ConsumeResult(enum.Enum):
    """What a handler made of a message."""

    SUCCESS = "SUCCESS"
    """Done with it."""
    RECONSUME_LATER = "RECONSUME_LATER"
    """Let it come again later; orderly: in a moment, and nothing of its queue before it."""

    CONSUME_SUCCESS = SUCCESS
    FAILURE = RECONSUME_LATER


class MessageModel(enum.Enum):
    """Who of a group gets a message."""

    CLUSTERING = "CLUSTERING"
    """One of its members: they share the queues."""
    BROADCASTING = "BROADCASTING"
    """Every member; each keeps offsets of its own, and there are no retries."""


class MessageQueue(NamedTuple):
    """One queue of a topic: what a selector chooses from."""

    topic: str
    queue_id: int


class SentMessage(Protocol):
    """Where a message was stored: the engine's `SendResult`, or what a remote or fake broker gives instead."""

    @property
    def message_id(self) -> str: ...
    @property
    def offset_message_id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int:
        """In entries; of a half message: in the half queue."""

    @property
    def physical_offset(self) -> int:
        """In bytes of the log."""

    @property
    def transaction_id(self) -> str | None: ...


class TransactionMessage(Protocol):
    """What a listener may ask of a message, be it about to be decided (`Message`) or checked (`HalfMessage`)."""

    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def flag(self) -> int: ...
    @property
    def transaction_id(self) -> str | None: ...


class ReceivedMessage(TransactionMessage, Protocol):
    """What a consumer hands out: the engine's `StoredMessage`, or what a remote or fake broker gives instead."""

    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int:
        """In entries of the queue."""

    @property
    def physical_offset(self) -> int:
        """In bytes of the log."""

    @property
    def message_id(self) -> str: ...
    @property
    def offset_message_id(self) -> str: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def reconsume_times(self) -> int: ...
    def retry(self, delay_level: int = 0) -> None:
        """Asks the consumer that handed it out to hand it out again later, in place of acknowledging it.

        0: longer each time, as RocketMQ does; 1 to 18: this delay level; -1: to the dead letters.
        """

    def settle(self) -> int | None:
        """For consumers: the delay level that `retry` asked for, None if it did not; from now on it cannot."""


class StoredHalf(TransactionMessage, Protocol):
    """What `HalfMessage` needs of a half message as stored."""

    @property
    def message_id(self) -> str: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...

    @property
    def queue_offset(self) -> int: ...
    @property
    def real_topic(self) -> str: ...
    @property
    def real_queue_id(self) -> int: ...
    @property
    def producer_group(self) -> str | None: ...


class HalfMessage:
    """A half message as a check sees it: under its real topic and queue, the rest as stored.

    RocketMQ hands a checker the same view.
    """

    __slots__ = ("_stored",)

    def __init__(self, stored: StoredHalf) -> None:
        self._stored = stored

    @property
    def topic(self) -> str:
        return self._stored.real_topic

    @property
    def queue_id(self) -> int:
        return self._stored.real_queue_id

    @property
    def body(self) -> bytes:
        return self._stored.body

    @property
    def tags(self) -> str | None:
        return self._stored.tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self._stored.keys

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the system's too, but not those that hide the real topic."""
        return {name: value for name, value in self._stored.properties.items() if name not in _HIDING}

    @property
    def flag(self) -> int:
        return self._stored.flag

    @property
    def half_queue_offset(self) -> int:
        """Its place in the half queue, in entries."""
        return self._stored.queue_offset

    @property
    def message_id(self) -> str:
        return self._stored.message_id

    @property
    def transaction_id(self) -> str | None:
        return self._stored.transaction_id

    @property
    def producer_group(self) -> str | None:
        return self._stored.producer_group

    @property
    def born_timestamp(self) -> datetime:
        """When the producer made it, by the producer's clock."""
        return utc(self._stored.born_timestamp_ms)

    @property
    def store_timestamp(self) -> datetime:
        """When it was stored."""
        return utc(self._stored.store_timestamp_ms)

    @property
    def check_times(self) -> int:
        """How often a broker says it has asked; txstore itself counts elsewhere (`broker.transactions()`)."""
        return check_times(self._stored.properties)

    def __repr__(self) -> str:
        return f"HalfMessage(topic={self.topic!r}, transaction_id={self.transaction_id!r})"


@dataclass(slots=True)
class TransactionSendResult:
    """What `send_in_transaction` did: where the half was stored, what the local transaction said, what went wrong."""

    send_result: SentMessage
    local_transaction_state: LocalTransactionState
    message: Message
    """The message with its transaction id: resent, it is found and not stored twice while it pends."""
    error: str | None = None
    """The text of what the local transaction, or the end behind it, raised; a check settles it then."""

    @property
    def send_status(self) -> SendStatus:
        return SendStatus.SEND_OK

    @property
    def message_id(self) -> str:
        return self.send_result.message_id

    @property
    def offset_message_id(self) -> str:
        return self.send_result.offset_message_id

    @property
    def transaction_id(self) -> str:
        return transaction_id_of(self.send_result)

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def queue_id(self) -> int:
        return self.send_result.queue_id

    @property
    def queue_offset(self) -> int:
        """In entries of the half queue."""
        return self.send_result.queue_offset

    @property
    def physical_offset(self) -> int:
        """Of the half message, in bytes of the log."""
        return self.send_result.physical_offset


def transaction_id_of(sent: SentMessage) -> str:
    """The id of the transaction that a half message began: its own unique id."""
    return sent.transaction_id or sent.message_id


def retry_topic(group: str) -> str:
    """The topic in which messages come again to a consumer group."""
    return f"%RETRY%{group}"


def dead_letter_topic(group: str) -> str:
    """The topic in which a consumer group's dead letters are parked."""
    return f"%DLQ%{group}"


def retry_group(group: str, topic: str) -> str:
    """The name under which a group's progress in its retry topic is kept, for what came from one of its topics."""
    return f"{group}%{topic}"


def is_retry_progress(topic: str, name: str) -> bool:
    """Whether offsets under this name are such a progress."""
    return topic.startswith("%RETRY%") and name.startswith(topic.removeprefix("%RETRY%") + "%")


def check_times(properties: dict[str, str]) -> int:
    """TRANSACTION_CHECK_TIMES of a half message; 0 where it is missing or no number (RocketMQ reads it so)."""
    text = properties.get(_CHECK_TIMES, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def utc(timestamp_ms: int) -> datetime:
    """Milliseconds since the epoch as an aware datetime; one beyond what datetime can hold is cut to its nearest."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        bound = datetime.max if timestamp_ms > 0 else datetime.min
        return bound.replace(tzinfo=UTC)
