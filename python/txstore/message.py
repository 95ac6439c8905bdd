"""Messages: the messages themselves, the results of sending, and RocketMQ's enums.

In:     values from the engine.
Out:    the classes that users import.
Always: immutable. Enums have RocketMQ's spelling as aliases.
Not here: validating a message (the engine does when it is created) and storing it.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, Self, TypeVar

from txstore._native import DEAD_LETTER_PREFIX, RETRY_PREFIX, Message, SendResult, StoredMessage
from txstore.config import FlushDiskType
from txstore.serialization import Serializer, decode
from txstore.transaction_state import TransactionState

__all__ = [
    "ConsumeFromWhere",
    "ConsumeResult",
    "FlushDiskType",
    "Half",
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
    "known_names",
    "retry_group",
    "retry_topic",
    "utc",
]

T = TypeVar("T")
_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
_HIDING = ("REAL_TOPIC", "REAL_QID")


class LocalTransactionState(enum.Enum):
    """The outcome of a local transaction: what a listener returns."""

    COMMIT = "COMMIT"
    """It committed: deliver the message."""
    ROLLBACK = "ROLLBACK"
    """It did not commit and never will: drop the message."""
    UNKNOWN = "UNKNOWN"
    """The outcome is not known yet: ask again later."""

    COMMIT_MESSAGE = COMMIT
    ROLLBACK_MESSAGE = ROLLBACK
    UNKNOW = UNKNOWN


class SendStatus(enum.Enum):
    """How safely a message was stored. An embedded store has no slaves, so a send that returns is always SEND_OK."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class ConsumeFromWhere(enum.Enum):
    """Where a consumer group starts in a queue that it has no offset for."""

    CONSUME_FROM_FIRST_OFFSET = "first"
    CONSUME_FROM_LAST_OFFSET = "last"

    FIRST = CONSUME_FROM_FIRST_OFFSET
    LAST = CONSUME_FROM_LAST_OFFSET


class ConsumeResult(enum.Enum):
    """What a handler returns for a message."""

    SUCCESS = "SUCCESS"
    """The message was processed."""
    RECONSUME_LATER = "RECONSUME_LATER"
    """Deliver it again later. An orderly consumer gets it again soon, before anything else of its queue."""

    CONSUME_SUCCESS = SUCCESS
    FAILURE = RECONSUME_LATER


class MessageModel(enum.Enum):
    """Which members of a group get a message."""

    CLUSTERING = "CLUSTERING"
    """One member: the members share the queues."""
    BROADCASTING = "BROADCASTING"
    """Every member. Each keeps its own offsets, and there are no retries."""


class MessageQueue(NamedTuple):
    """One queue of a topic, for a selector to choose."""

    topic: str
    queue_id: int


class SentMessage(Protocol):
    """Where a message was stored: the engine's `SendResult`, or the result of a remote or fake broker."""

    @property
    def message_id(self) -> str:
        """The unique id (32 hex digits), RocketMQ's msgId."""

    @property
    def offset_message_id(self) -> str:
        """The offset id: the broker's address and the physical offset, in hex."""

    @property
    def topic(self) -> str:
        """The topic. For a half message: the topic that it was sent to."""

    @property
    def queue_id(self) -> int:
        """The queue's number in the topic."""

    @property
    def queue_offset(self) -> int:
        """In entries; for a half message, in the half queue."""

    @property
    def physical_offset(self) -> int:
        """In bytes of the commit log."""

    @property
    def transaction_id(self) -> str | None:
        """The transaction's id for a half message; otherwise None."""

    @property
    def recall_handle(self) -> str | None:
        """The handle with which the message can be recalled while it waits for its time; None if it does not wait."""


class Half(SentMessage, Protocol):
    """The handle of a transaction: what storing its half message returned. A producer ends the transaction by it."""


class TransactionMessage(Protocol):
    """The part of a message that listeners see, before its end (`Message`) and in a check (`HalfMessage`)."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def body(self) -> bytes:
        """The body, as the application sent it."""

    def value(self, kind: type[T], *, serializer: Serializer | None = None) -> T:
        """Returns the body's value as a `kind`; from JSON or by the `serializer`. Raises DecodeError."""

    @property
    def tags(self) -> str | None:
        """The tag; None without one."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty without any."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties (a fresh dict)."""

    @property
    def flag(self) -> int:
        """The application's own number."""

    @property
    def transaction_id(self) -> str | None:
        """The id of its transaction; None for a plain message."""


class ReceivedMessage(TransactionMessage, Protocol):
    """A message that a consumer returns: the engine's `StoredMessage`, or that of a remote or fake broker."""

    @property
    def queue_id(self) -> int:
        """The queue's number in the topic."""

    @property
    def queue_offset(self) -> int:
        """In entries of the queue."""

    @property
    def physical_offset(self) -> int:
        """In bytes of the commit log."""

    @property
    def message_id(self) -> str:
        """The unique id (32 hex digits), RocketMQ's msgId."""

    @property
    def offset_message_id(self) -> str:
        """The offset id: the broker's address and the physical offset, in hex."""

    @property
    def born_timestamp(self) -> datetime:
        """When the client created it, by the client's clock, in UTC."""

    @property
    def store_timestamp(self) -> datetime:
        """When it was stored, in UTC."""

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""

    def ack(self) -> None:
        """Acknowledges this message alone, whatever happens to the others that the consumer handed out with it.

        Only marks the message, so any thread may call it, and an event loop need not wait. Repeating it has no effect.
        Raises InvalidMessageError after `nack` or `retry`, and if the message was returned to its queue.
        """

    def nack(self, delay_level: int = 0) -> None:
        """Has this message delivered again later, also if an exception follows. `delay_level` as for `retry`.

        Only marks the message, as `ack`. The first call counts. Raises InvalidMessageError, InvalidOptionError.
        """

    def retry(self, delay_level: int = 0) -> None:
        """Asks for delivery again later instead of acknowledging the message.

        `delay_level` 0: longer each time, as in RocketMQ; 1 to 18: this delay level; -1: to the dead letters.
        """

    @property
    def decision(self) -> int | None:
        """What `ack` (ACKNOWLEDGED) or `nack` (its delay level) decided; None before. For consumers."""

    def give_back(self) -> bool:
        """Closes the message after its return to its queue. Returns False after `ack` or `nack`. For consumers."""

    def settle(self) -> int | None:
        """Closes the message. Returns the delay level that `retry` or `nack` asked for, or None. For consumers."""


class StoredHalf(TransactionMessage, Protocol):
    """The part of a stored half message that `HalfMessage` needs."""

    @property
    def message_id(self) -> str:
        """The unique id (32 hex digits), RocketMQ's msgId."""

    @property
    def born_timestamp(self) -> datetime:
        """When the client created it, by the client's clock, in UTC."""

    @property
    def store_timestamp(self) -> datetime:
        """When it was stored, in UTC."""

    @property
    def queue_offset(self) -> int:
        """The position in the half queue, in entries."""

    @property
    def real_topic(self) -> str:
        """The destination topic of a half message, otherwise `topic`."""

    @property
    def real_queue_id(self) -> int:
        """The destination queue of a half message, otherwise `queue_id`."""

    @property
    def producer_group(self) -> str | None:
        """The producer group that began its transaction."""


class HalfMessage:
    """A half message as a checker sees it: with its real topic and queue, the rest as stored.

    RocketMQ hands a checker the same view.
    """

    __slots__ = ("_stored",)

    def __init__(self, stored: StoredHalf) -> None:
        self._stored = stored

    @property
    def topic(self) -> str:
        """The real topic, to which a commit delivers it."""
        return self._stored.real_topic

    @property
    def queue_id(self) -> int:
        """The real queue."""
        return self._stored.real_queue_id

    @property
    def body(self) -> bytes:
        """The body, as the application sent it."""
        return self._stored.body

    def value(self, kind: type[T], *, serializer: Serializer | None = None) -> T:
        """Returns the body's value as a `kind`; from JSON or by the `serializer`. Raises DecodeError."""
        return decode(self, kind, serializer)

    @property
    def tags(self) -> str | None:
        """The tag; None without one."""
        return self._stored.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty without any."""
        return self._stored.keys

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including the system's, except those that hide the real topic."""
        return {name: value for name, value in self._stored.properties.items() if name not in _HIDING}

    @property
    def flag(self) -> int:
        """The application's own number."""
        return self._stored.flag

    @property
    def half_queue_offset(self) -> int:
        """Its queue offset in the half queue."""
        return self._stored.queue_offset

    @property
    def message_id(self) -> str:
        """The unique id (32 hex digits), RocketMQ's msgId."""
        return self._stored.message_id

    @property
    def transaction_id(self) -> str | None:
        """The transaction's id."""
        return self._stored.transaction_id

    @property
    def producer_group(self) -> str | None:
        """The producer group that began its transaction."""
        return self._stored.producer_group

    @property
    def born_timestamp(self) -> datetime:
        """When the producer created it, by the producer's clock, in UTC."""
        return self._stored.born_timestamp

    @property
    def store_timestamp(self) -> datetime:
        """When it was stored, in UTC."""
        return self._stored.store_timestamp

    @property
    def check_times(self) -> int:
        """How often brokers claim to have checked it. txstore counts checks in `broker.transactions()`."""
        return check_times(self._stored.properties)

    def __repr__(self) -> str:
        return f"HalfMessage(topic={self.topic!r}, transaction_id={self.transaction_id!r})"


@dataclass(slots=True)
class TransactionSendResult:
    """The result of `send_in_transaction`: where the half message is, the outcome, and the error."""

    send_result: SentMessage
    local_transaction_state: LocalTransactionState
    message: Message
    """The message with its transaction id. If resent while it is pending, it is recognized and not stored again."""
    error: str | None = None
    """The error of the local transaction, or of the end after it, in one line. A check then settles the transaction."""
    exception: BaseException | None = None
    """The exception that `error` describes: what the local transaction raised, or a TxStoreError."""

    def raise_for_error(self) -> Self:
        """Raises `exception` if there is one; otherwise returns the result. A check settles the transaction anyway."""
        if self.exception is not None:
            raise self.exception
        return self

    @property
    def send_status(self) -> SendStatus:
        """How the half message is secured."""
        return SendStatus.SEND_OK

    @property
    def message_id(self) -> str:
        """The unique id (32 hex digits), RocketMQ's msgId."""
        return self.send_result.message_id

    @property
    def offset_message_id(self) -> str:
        """The offset id of the half message."""
        return self.send_result.offset_message_id

    @property
    def transaction_id(self) -> str:
        """The transaction's id."""
        return transaction_id_of(self.send_result)

    @property
    def topic(self) -> str:
        """The topic to which a commit delivers the message."""
        return self.message.topic

    @property
    def queue_id(self) -> int:
        """The queue to which a commit delivers the message."""
        return self.send_result.queue_id

    @property
    def queue_offset(self) -> int:
        """In entries of the half queue."""
        return self.send_result.queue_offset

    @property
    def physical_offset(self) -> int:
        """Of the half message, in bytes of the commit log."""
        return self.send_result.physical_offset


def transaction_id_of(half: SentMessage) -> str:
    """Returns the id of the transaction that a half message began: its own unique id."""
    return half.transaction_id or half.message_id


def retry_topic(group: str) -> str:
    """Returns the topic in which a consumer group gets messages again."""
    return f"{RETRY_PREFIX}{group}"


def dead_letter_topic(group: str) -> str:
    """Returns the topic that holds a consumer group's dead letters."""
    return f"{DEAD_LETTER_PREFIX}{group}"


def retry_group(group: str, topic: str) -> str:
    """Returns the name of a group's progress in its retry topic for messages that came from `topic`."""
    return f"{group}%{topic}"


def is_retry_progress(topic: str, name: str) -> bool:
    """Tells whether offsets under this name are such progress in a retry topic."""
    return topic.startswith(RETRY_PREFIX) and name.startswith(topic.removeprefix(RETRY_PREFIX) + "%")


def check_times(properties: dict[str, str]) -> int:
    """Returns TRANSACTION_CHECK_TIMES of a half message; 0 if it is missing or not a number, as in RocketMQ."""
    text = properties.get(_CHECK_TIMES, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def utc(timestamp_ms: int) -> datetime:
    """Converts milliseconds since the epoch to an aware datetime, clamped to datetime's range."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        bound = datetime.max if timestamp_ms > 0 else datetime.min
        return bound.replace(tzinfo=UTC)


def known_names(what: str, names: Iterable[str]) -> str:
    """Returns a hint: "the topics are a, b", or "there are no topics". `what`: the plural."""
    known = ", ".join(names)
    return f"the {what} are {known}" if known else f"there are no {what}"
