"""The interface of the Rust extension `txstore._native`: Rust is mechanism, Python is policy.

One call crosses per message or batch. Offsets are ints: `physical_offset` in bytes of the commit log, `queue_offset` in
entries of a queue. Times in the public classes are datetimes in UTC
and timedeltas; others are ints in milliseconds (`*_ms`, epoch for timestamps). Every call may raise a `TxStoreError`
(`txstore.errors`); a call on a closed handle raises `StoreClosedError`, on one opened before a fork `StoreForkedError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from os import PathLike
from typing import Final, Literal, Protocol, TypeVar, final, type_check_only

from typing_extensions import disjoint_base

from txstore.errors import TxStoreError
from txstore.serialization import Serializer
from txstore.transaction_state import TransactionState

_T = TypeVar("_T")

__version__: str
__debug_build__: bool

# Names that the system reserves, and limits of topics and groups.
ACKNOWLEDGED: Final[int]
"""The `decision` of a message after `ack`. It differs from all delay levels."""
DEAD_LETTER_PREFIX: Final[str]
DISCARD_TOPIC: Final[str]
HALF_TOPIC: Final[str]
OP_TOPIC: Final[str]
RETRY_PREFIX: Final[str]
SCHEDULE_TOPIC: Final[str]
SYSTEM_GROUP_PREFIX: Final[str]
TEMPLATE_TOPIC: Final[str]
TIMED_TOPIC: Final[str]
TRANSACTION_GROUP: Final[str]
GROUP_BYTES_MAX: Final[int]
RETRY_TOPIC_BYTES_MAX: Final[int]
TOPIC_BYTES_MAX: Final[int]

@final
class Message:
    """A message that an application sends. Immutable; checked when it is created.

    `body`: at least 1 byte; the store refuses more than its `max_message_size` (4 MiB). `keys`: words without spaces; a
    str is one key or several separated by spaces. `properties`: the application's own names and values. `delay_level`:
    0 (at once) to 18. `deliver_at`: an aware datetime, which a delay level excludes; one that has passed means at once.
    `message_group`: messages of one group go to one queue, in order.

    Raises InvalidMessageError (empty body, no time zone, empty name or value, \\x00 \\x01 \\x02 in a name or value, reserved property
    name, properties too long) and InvalidNameError (topic).
    """

    def __new__(
        cls,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        message_group: str | None = None,
    ) -> Message: ...
    @classmethod
    def of(
        cls,
        topic: str,
        value: object,
        *,
        serializer: Serializer | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        message_group: str | None = None,
    ) -> Message:
        """Creates a message whose body is the value, as JSON or by another `serializer`; `value` decodes it again.

        The default writes dataclasses, Pydantic models and plain values. The other arguments are those of `Message`.
        Raises InvalidMessageError for a value that cannot be encoded, and the errors of `Message`.
        """
    def value(self, kind: type[_T], *, serializer: Serializer | None = None) -> _T:
        """Returns the body's value as a `kind`, such as a dataclass or a Pydantic model; from JSON or by the
        `serializer`.

        Raises DecodeError, which says where what was found, and InvalidOptionError for a type that JSON cannot be
        converted to.
        """
    @property
    def topic(self) -> str:
        """The topic, as given."""
    @property
    def body(self) -> bytes:
        """The body, as bytes."""
    @property
    def tags(self) -> str | None:
        """The tag; None without one."""
    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty without any."""
    @property
    def properties(self) -> dict[str, str]:
        """The application's own properties (a fresh dict)."""
    @property
    def flag(self) -> int:
        """The application's own number, which the store keeps."""
    @property
    def delay_level(self) -> int:
        """RocketMQ's delay level: 0 (none) to 18."""
    @property
    def deliver_at(self) -> datetime | None:
        """When the message is delivered, in UTC; None for at once or by a delay level."""
    @property
    def message_group(self) -> str | None:
        """The name whose messages go to one queue, in order; None without one."""
    @property
    def turn_topic(self) -> str | None:
        """The topic, if its queues take this message in turn; None with a message group, a delay level or a time."""
    @property
    def transaction_id(self) -> str | None:
        """The unique id, in the copy that a local transaction gets; None before."""
    def replace(self, *, delay_level: int) -> Message:
        """Returns a copy with another delay level. A level above 0 replaces the time of delivery."""
    def with_transaction_id(self, transaction_id: str) -> Message:
        """Returns a copy with the id of its transaction."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class OutboxRow:
    """A message in the outbox of a database. Immutable. Raises InvalidMessageError for bytes that are no such row."""

    def __new__(cls, data: bytes) -> OutboxRow: ...
    @staticmethod
    def of(message: Message, producer_group: str, queue_id: int | None = None) -> OutboxRow:
        """Returns a new row for a message, with a new message id."""
    @property
    def data(self) -> bytes:
        """The row in its compact binary form."""
    @property
    def message_id(self) -> str:
        """The unique id (32 hex digits) that the message has in the log."""
    @property
    def topic(self) -> str:
        """The topic."""
    @property
    def producer_group(self) -> str:
        """The name of the producer group that sent it."""
    @property
    def message_group(self) -> str | None:
        """The name whose messages go to one queue, in order; None without one."""
    @property
    def delay_level(self) -> int:
        """RocketMQ's delay level: 0 (none) to 18."""
    @property
    def deliver_at(self) -> datetime | None:
        """When the message is delivered, in UTC; None for at once or by a delay level."""
    @property
    def queue_id(self) -> int | None:
        """The queue's number in the topic; None if it is chosen when the row is forwarded."""
    @property
    def born_timestamp(self) -> datetime:
        """When the message was created."""
    @property
    def body(self) -> bytes:
        """The body."""
    @property
    def properties_text(self) -> str:
        """The properties as RocketMQ's protocol sends them, with the message id."""
    @property
    def flag(self) -> int:
        """The application's own flag."""

@final
class SendResult:
    """Where a message was stored. For a half message: its offsets in the half queue."""

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
        """The position in the queue, in entries."""
    @property
    def physical_offset(self) -> int:
        """The position in the commit log, in bytes."""
    @property
    def transaction_id(self) -> str | None:
        """The transaction's id for a half message; otherwise None."""
    @property
    def recall_handle(self) -> str | None:
        """The handle with which the message can be recalled while it waits for its time; None if it does not wait."""

@final
class EndResult:
    """What ending a transaction did."""

    @property
    def outcome(self) -> TransactionState:
        """How the transaction ended: COMMITTED, ROLLED_BACK or DISCARDED."""
    @property
    def already(self) -> bool:
        """Whether the transaction had this outcome before, so that nothing was written."""
    @property
    def physical_offset(self) -> int | None:
        """The offset of the final message, if this call wrote one."""
    @property
    def queue_offset(self) -> int | None:
        """The queue offset of the final message, if this call wrote one."""

@final
class StoredMessage:
    """A message as stored in the log. Immutable; decoded on access."""

    @property
    def topic(self) -> str:
        """The topic. For a retried message from a consumer, the topic that it was sent to."""
    def ack(self) -> None:
        """Acknowledges this message alone, whatever happens to the others that the consumer handed out with it.

        Without it, the consumer acknowledges its messages when it is asked for the next ones. Any thread may call this,
        and repeat it. It only marks the message: the consumer acknowledges it when it is used next, and at the latest
        when it writes or reports its offsets, or is closed. Raises InvalidMessageError if the message does not come
        from a consumer, or after `nack`, `retry`, or its return to its queue.
        """
    def nack(self, delay_level: int = 0) -> None:
        """Has this message delivered again later, also if an exception follows.

        `delay_level` as for `retry`. Any thread may call this, and repeat it; the first call counts. It only marks the
        message, as `ack` does. Raises InvalidMessageError if the message does not come from a consumer, or is
        acknowledged or returned to its queue, InvalidOptionError.
        """
    def retry(self, delay_level: int = 0) -> None:
        """Asks the consumer to deliver the message again later, instead of acknowledging it.

        `delay_level` 0: RocketMQ's delay, longer each time (10 s, 30 s, 1 min, …), the 17th time to the dead letters;
        1 to 18: this delay level; -1: to the dead letters. Written when the consumer acknowledges. Raises
        InvalidMessageError if the message does not come from a consumer or is acknowledged, InvalidOptionError.
        """
    @property
    def decision(self) -> int | None:
        """What `ack` (`ACKNOWLEDGED`) or `nack` (its delay level) decided; None before, and after `settle`. For
        consumers."""
    def give_back(self) -> bool:
        """Closes the message after its return to its queue. Returns False after `ack` or `nack`. For consumers."""
    def settle(self) -> int | None:
        """Closes the message. Returns the delay level that `retry` or `nack` asked for, or None. For consumers."""
    @property
    def queue_id(self) -> int:
        """The queue's number in the topic."""
    @property
    def queue_offset(self) -> int:
        """The position in the queue, in entries."""
    @property
    def physical_offset(self) -> int:
        """The position in the commit log, in bytes."""
    @property
    def size(self) -> int:
        """The size of the whole record in bytes."""
    @property
    def version(self) -> int:
        """The record's version: 1, or 2, in which the topic may be longer than 127 bytes."""
    @property
    def message_id(self) -> str:
        """The unique id, otherwise the offset id."""
    @property
    def offset_message_id(self) -> str:
        """The offset id: the broker's address and the physical offset, in hex."""
    @property
    def transaction_id(self) -> str | None:
        """`__transactionId__`, otherwise the unique id of a transaction's record, otherwise None."""
    @property
    def body(self) -> bytes:
        """The body as the application sent it, decompressed. Raises StoreCorruptError if it cannot be decompressed."""
    def value(self, kind: type[_T], *, serializer: Serializer | None = None) -> _T:
        """Returns the body's value as a `kind`, such as a dataclass or a Pydantic model; from JSON or by the
        `serializer`.

        Raises DecodeError, which says where what was found, and InvalidOptionError for a type that JSON cannot be
        converted to.
        """
    @property
    def stored_body(self) -> bytes:
        """The body as stored, perhaps compressed."""
    @property
    def body_crc(self) -> int:
        """The CRC-32 of the stored body, without its highest bit."""
    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty without any."""
    @property
    def tags(self) -> str | None:
        """The tag; None without one."""
    @property
    def properties(self) -> dict[str, str]:
        """All properties, including the system's, without the record's CRC (a fresh dict; the last of equal names)."""
    @property
    def properties_bytes(self) -> bytes:
        """The properties' text as stored."""
    @property
    def record(self) -> bytes:
        """The whole record as stored."""
    @property
    def flag(self) -> int:
        """The application's own number."""
    @property
    def sys_flag(self) -> int:
        """RocketMQ's flags of the record: compression, the kind of transaction, IPv6 addresses."""
    @property
    def transaction_type(self) -> Literal["none", "prepared", "commit", "rollback"]:
        """'none', 'prepared', 'commit' or 'rollback'; 'prepared' for every record of the half topic."""
    @property
    def born_timestamp(self) -> datetime:
        """When the client created it, by the client's clock, in UTC."""
    @property
    def store_timestamp(self) -> datetime:
        """When it was stored, in UTC."""
    @property
    def born_timestamp_ms(self) -> int:
        """`born_timestamp` as the record and RocketMQ's protocol have it, in ms since the epoch."""
    @property
    def store_timestamp_ms(self) -> int:
        """`store_timestamp` as the record and RocketMQ's protocol have it, in ms since the epoch."""
    @property
    def born_host(self) -> str:
        """`ADDRESS:PORT`, IPv6 in brackets."""
    @property
    def store_host(self) -> str:
        """`ADDRESS:PORT` of the broker that stored it, IPv6 in brackets."""
    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""
    @property
    def prepared_transaction_offset(self) -> int:
        """The physical offset of its half message; 0 if there is none."""
    @property
    def real_topic(self) -> str:
        """The destination topic of a half or discarded message, otherwise `topic`."""
    @property
    def real_queue_id(self) -> int:
        """The destination queue of a half or discarded message, otherwise `queue_id`."""
    @property
    def producer_group(self) -> str | None:
        """The producer group of a transactional message; None for others."""

@final
class WaitingHalf:
    """Facts about one pending transaction, for `decide`."""

    @property
    def half_queue_offset(self) -> int:
        """The half queue offset of its newest copy, which identifies it in the calls below."""
    @property
    def prepared_transaction_offset(self) -> int:
        """The physical offset of its newest copy."""
    @property
    def producer_group(self) -> str:
        """The producer group, which checks ask."""
    @property
    def owner(self) -> int:
        """The producer id that `prepare` was called with; 0 after a restart."""
    @property
    def running(self) -> bool:
        """Whether its local transaction still runs here (`local_transaction_ended` was not called yet)."""
    @property
    def age_ms(self) -> int:
        """Time since it was stored, or since its local transaction ended here, by a monotonic clock."""
    @property
    def stored_age_ms(self) -> int:
        """Time since it was stored, for the retention time."""
    @property
    def immunity_ms(self) -> int | None:
        """CHECK_IMMUNITY_TIME_IN_SECONDS of the message, in milliseconds."""
    @property
    def checks(self) -> int:
        """How many checks were sent."""
    @property
    def last_check_age_ms(self) -> int | None:
        """Time since the last check was sent; None if there was none since the store was opened."""
    @property
    def answered(self) -> bool:
        """Whether the last check was answered; True before the first."""
    @property
    def look_again_in_ms(self) -> int:
        """Time until `halves_due` returns it again; 0 or less: it is due."""

@final
class DueHalves:
    """Due transactions with the same facts, for `decide_alike`.

    They have the same producer, group, number of checks and immunity time, and all or none of their local transactions
    still run. They differ in their offsets and ages.
    """

    @property
    def halves(self) -> list[WaitingHalf]:
        """The transactions, the longest due first."""
    @property
    def half_queue_offsets(self) -> list[int]:
        """The half queue offsets of `halves`, in the same order."""
    @property
    def youngest(self) -> WaitingHalf:
        """The facts with the least value of each age. The values may be of different transactions."""
    @property
    def oldest(self) -> WaitingHalf:
        """The facts with the greatest value of each age."""
    def __len__(self) -> int: ...

@final
class TransactionRow:
    """One transaction of the log, folded by the outcome rule (docs/internals/transactions.md).

    The constructor is for what a server sent. Raises InvalidOptionError for an unknown state.
    """

    def __new__(
        cls,
        *,
        transaction_id: str | None,
        producer_group: str | None,
        topic: str,
        state: str,
        halves: Sequence[tuple[int, int]],
        finals: Sequence[int],
        discards: Sequence[int],
        ops: Sequence[int],
        prepared_timestamp_ms: int,
        ended_timestamp_ms: int | None,
        checks: int,
    ) -> TransactionRow: ...
    @property
    def transaction_id(self) -> str | None:
        """The unique id; None if its records have none."""
    @property
    def producer_group(self) -> str | None:
        """The producer group; None if its records have none."""
    @property
    def topic(self) -> str:
        """The real topic."""
    @property
    def state(self) -> TransactionState:
        """The state that the log tells."""
    @property
    def halves(self) -> list[tuple[int, int]]:
        """(half queue offset, physical offset) of each copy, oldest first."""
    @property
    def finals(self) -> list[int]:
        """Physical offsets of its messages in the real topic. More than one: a broker committed it twice."""
    @property
    def discards(self) -> list[int]:
        """Physical offsets of its copies in TRANS_CHECK_MAX_TIME_TOPIC."""
    @property
    def ops(self) -> list[int]:
        """Physical offsets of the op messages that name one of its halves."""
    @property
    def prepared_timestamp(self) -> datetime:
        """When its first half was stored, in UTC."""
    @property
    def ended_timestamp(self) -> datetime | None:
        """When the record that decided it was stored, in UTC; None without one."""
    @property
    def checks(self) -> int:
        """TRANSACTION_CHECK_TIMES of its newest copy, as counted by a RocketMQ broker."""

@final
class OpenReport:
    """What opening found and did."""

    @property
    def clean(self) -> bool:
        """Whether the store was closed cleanly."""
    @property
    def scanned_from(self) -> int:
        """The physical offset at which the scan began: that of the snapshot, or the log's first."""
    @property
    def scanned_bytes(self) -> int:
        """Bytes of the log that the opening scanned."""
    @property
    def truncated_bytes(self) -> int:
        """Bytes of the torn tail that was truncated, or would be if the store is opened read-only."""
    @property
    def healed_ops(self) -> int:
        """Halves whose missing op message was written, or would be if the store is opened read-only."""
    @property
    def duration(self) -> timedelta:
        """How long the opening took."""
    @property
    def warnings(self) -> list[str]:
        """What was found and repaired or ignored, one text each."""

@final
class LogFile:
    """Facts about one file of the log."""

    @property
    def first(self) -> int:
        """The physical offset of its first byte."""
    @property
    def end(self) -> int:
        """The physical offset after its last byte."""
    @property
    def age_ms(self) -> int:
        """Time since the record after its newest one was stored. A jump of the wall clock does not make it older."""
    @property
    def held(self) -> bool:
        """Whether this file or an earlier one has a half of a pending transaction, or a waiting delayed or timed message."""
    @property
    def unread(self) -> bool:
        """Whether this file or an earlier one has a message that a group of its topic has not acknowledged.

        A topic that no group reads has no unread messages.
        """

@final
class Expired:
    """What `remove_log_files` did: how many files it removed."""

    @property
    def minimum(self) -> int:
        """The physical offset at which the log now begins."""
    @property
    def log_files(self) -> int:
        """How many files of the log were removed."""
    @property
    def queue_files(self) -> int:
        """How many files of queues were removed."""
    @property
    def index_files(self) -> int:
        """How many files of the index were removed."""

@final
class Sql:
    """An SQL92 expression over the properties of messages, instead of tags: `Sql("price > 10 AND region = 'eu'")`.

    The rules are those of RocketMQ's filter: `=`, `<>`, `<`, `<=`, `>`, `>=`, BETWEEN, IN, IS NULL, CONTAINS, STARTSWITH,
    ENDSWITH, AND, OR, NOT. A property is a string, and is converted to the type of the number that it is compared with:
    "2.5" is not an integer, so `price > 2` does not hold for it, and `price > 2.0` does. TAGS and KEYS are properties, too.
    Raises InvalidOptionError, which names the position in the expression (at most 16 KiB).
    """

    def __new__(cls, expression: str) -> Sql: ...
    @property
    def expression(self) -> str:
        """The text."""
    def matches(self, properties: dict[str, str]) -> bool:
        """Returns whether a message with these properties fulfils the expression."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[type[Sql], tuple[str]]: ...

@final
class StoreStat:
    """Statistics of an open store. The constructor is for what a server sent."""

    def __new__(
        cls,
        *,
        min_physical_offset: int,
        max_physical_offset: int,
        durable_physical_offset: int,
        visible_physical_offset: int,
        snapshot_physical_offset: int,
        commit_log_file_size: int,
        consume_queue_file_size: int,
        max_hash_slot_num: int,
        max_index_num: int,
        queues: int,
        index_files: int,
        pending_transactions: int,
        pending_table_bytes: int,
        decided_halves: int,
    ) -> StoreStat: ...
    @property
    def min_physical_offset(self) -> int:
        """The physical offset at which the log begins."""
    @property
    def max_physical_offset(self) -> int:
        """The physical offset after the last record."""
    @property
    def durable_physical_offset(self) -> int:
        """The physical offset below which everything is on disk."""
    @property
    def visible_physical_offset(self) -> int:
        """The physical offset below which readers see everything."""
    @property
    def snapshot_physical_offset(self) -> int:
        """The physical offset at which the next opening begins to scan."""
    @property
    def commit_log_file_size(self) -> int:
        """Bytes of a file of the log."""
    @property
    def consume_queue_file_size(self) -> int:
        """Bytes of a file of a queue."""
    @property
    def max_hash_slot_num(self) -> int:
        """Slots of an index file."""
    @property
    def max_index_num(self) -> int:
        """Entries of an index file."""
    @property
    def queues(self) -> int:
        """How many queues there are, including those of the system."""
    @property
    def index_files(self) -> int:
        """How many index files there are."""
    @property
    def pending_transactions(self) -> int:
        """How many transactions are pending."""
    @property
    def pending_table_bytes(self) -> int:
        """Memory that the table of pending transactions uses."""
    @property
    def decided_halves(self) -> int:
        """How many ended halves the table remembers."""

@final
class TopicEnds:
    """How the transactions of one topic ended since the store was opened."""

    @property
    def topic(self) -> str:
        """The real topic."""
    @property
    def committed(self) -> int:
        """How many were committed."""
    @property
    def rolled_back(self) -> int:
        """How many were rolled back."""
    @property
    def discarded(self) -> int:
        """How many were discarded."""
    @property
    def latency(self) -> list[tuple[int | None, int]]:
        """Commits by time since the half was stored: (upper bound in ms, None for the rest; count), not cumulative."""
    @property
    def latency_ms(self) -> int:
        """The sum of these times over all commits."""

@final
class HandClock:
    """A clock that only its owner moves. Thread-safe."""

    def __new__(cls, time_ms: int) -> HandClock: ...
    def time_ms(self) -> int:
        """Returns the wall clock: milliseconds since the epoch."""
    def monotonic_ms(self) -> int:
        """Returns the milliseconds by which it was advanced."""
    def advance(self, milliseconds: int) -> None:
        """Advances the wall clock and the monotonic clock."""
    def jump(self, milliseconds: int) -> None:
        """Moves the wall clock alone, forward or back."""

@final
class MemoryStorage:
    """The files of a store, in memory: `Store.open` takes it as a path. No thread flushes such a store."""

    def __new__(cls, clock: HandClock) -> MemoryStorage: ...
    def crash(self, *, power_loss: bool, seed: int | None = None) -> MemoryStorage:
        """Makes every later write here fail, and returns what survived.

        That is all that was written; or with `power_loss` what was synced, and with a `seed` some of the rest by
        chance.
        """

@final
class Store:
    """An open store directory. Thread-safe; cannot be used across a fork."""

    @staticmethod
    def open(
        path: str | MemoryStorage,
        *,
        read_only: bool = False,
        replica: bool = False,
        held: bool = False,
        flush_disk_type: str = "ASYNC_FLUSH",
        transaction_flush_disk_type: str = "SYNC_FLUSH",
        mapped_file_size_commit_log: int | None = None,
        mapped_file_size_consume_queue: int | None = None,
        max_hash_slot_num: int | None = None,
        max_index_num: int | None = None,
        max_message_size: int = 4194304,
        flush_interval_commit_log_ms: int = 500,
        transaction_op_msg_max_size: int = 4096,
        enabled_append_prop_crc: bool | None = None,
        transaction_timeout_ms: int = 6000,
        reject_late_end: bool = False,
        pending_transactions_max: int = 10000000,
        timer_max_delay_sec: int = 259200,
        timed_messages_max: int = 10000000,
        broker_host: str = "127.0.0.1",
        broker_port: int = 10911,
    ) -> Store:
        """Opens a store. A writer creates it if the directory is missing or empty, and recovers and heals it.

        A `replica` appends only what `append_copied` takes. In a replica and with `held`, readers see only what
        `show_up_to` has released.

        A size of None: the store's own if it exists, otherwise RocketMQ's default. Raises InvalidOptionError (a size
        that differs from the store's), StoreLockedError, ForeignStoreError, StoreCorruptError, MissingFileError,
        OSErrors.
        """
    @property
    def replica(self) -> bool:
        """Whether it takes no records of its own: a replica, or a source that was replaced."""
    def append_copied(self, offset: int, bytes: bytes, epoch: int) -> int:
        """Adds bytes that follow the end of a replica's log in its source; returns the end of the last whole record.

        `epoch` is the source's. Raises InvalidOptionError for another offset than the log's end and for an epoch below
        the accepted one, StoreCorruptError for bytes that are no records. Then nothing has changed.
        """
    def show_up_to(self, end: int) -> None:
        """Shows readers everything below a physical offset that the log has."""
    def adopt_settings(self, text: str) -> bool:
        """Gives a replica the settings of its source, as the text of their file.

        Returns False, and changes nothing, if the replica must be opened with them.
        """
    def adopt_progress(self, half_progress: int, delays: Sequence[tuple[int, int]]) -> None:
        """Raises the progress of the half queue, and of the queues of delayed messages (queue id, queue offset), to that
        of the RocketMQ broker that this replica copies. Nothing rises above the end of its queue."""
    def last_record(self) -> tuple[int, bytes] | None:
        """Returns where the last record begins, and its bytes; None in an empty log."""
    def record_before(self, end: int) -> tuple[int, bytes] | None:
        """Returns where the last record begins that ends at or below a physical offset, and its bytes; None if the log
        has none. Reads the file of the log that has it from its beginning."""
    def close(self) -> None:
        """Writes all buffered data, a snapshot and the progress, marks the store clean and unlocks it. Idempotent."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    @property
    def read_only(self) -> bool:
        """Whether it was opened read-only."""
    @property
    def path(self) -> str:
        """The store's directory."""
    @property
    def store_id(self) -> str | None:
        """The id that tells the store from any other; None if no txstore version with ids has opened it for writing."""
    @property
    def open_report(self) -> OpenReport:
        """What the opening found and did."""
    def stat(self) -> StoreStat:
        """Returns the store's statistics now."""

    # Append
    def append(self, message: Message, queue_id: int) -> SendResult:
        """Stores one message. It is visible to readers, and with SYNC_FLUSH durable, when this returns."""
    def append_many(self, messages: Sequence[Message], queue_ids: Sequence[int]) -> list[SendResult]:
        """Stores several messages in one write and one sync: either all or none."""
    def append_row(self, row: OutboxRow, queue_id: int) -> Literal["appended", "present", "in_doubt"]:
        """Stores the message of an outbox row, with the row's message id. Returns what `append_rows` returns."""
    def append_rows(
        self, rows: Sequence[OutboxRow], queue_ids: Sequence[int], *, once: bool
    ) -> list[Literal["appended", "present", "in_doubt"]]:
        """Stores the messages of outbox rows in one write: either all or none. Returns what became of each.

        With `once`, or if a client has sent messages once, a message that is in the log already is `present` and not
        stored again. A message is `in_doubt`,
        and not stored, if it is older than the oldest record left, because retention may have removed its record.
        """
    @property
    def appended_end(self) -> int:
        """The physical offset after the last record."""
    @property
    def durable_end(self) -> int:
        """The physical offset up to which the log is durable."""
    def flush(self) -> None:
        """Makes all messages appended so far durable."""
    def flush_round(self) -> None:
        """Does once what the thread of a store on disk does at every `flush_interval_commit_log_ms`."""
    def check_room(self) -> None:
        """Checks whether a large message could be stored now. Raises StorePoisonedError, DiskFullError if not."""

    # Transactions
    def prepare(self, message: Message, queue_id: int, producer_group: str, owner: int = 0) -> SendResult:
        """Stores a half message. A resent half (same group, id, topic, body) that is still pending is not stored twice.

        Durable when this returns, except if both flush types are ASYNC_FLUSH. With an `owner` other than 0, its local
        transaction runs here until `local_transaction_ended`. Raises TooManyPendingError.
        """
    def prepare_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str, owner: int = 0
    ) -> SendResult:
        """Stores the half messages of one transaction, either all or none. Returns where that of the first is stored.

        One end ends them all. Raises InvalidMessageError for none or more than 1,000 messages, TooManyPendingError.
        """
    def local_transaction_ended(self, half_queue_offset: int) -> None:
        """Restarts the transaction's age when its local transaction ends. Ignored for a transaction that has ended."""
    def end_transaction(
        self,
        half_queue_offset: int,
        prepared_transaction_offset: int,
        *,
        commit: bool,
        transaction_id: str | None = None,
        producer_group: str | None = None,
        from_check: bool = False,
        by_hand: bool = False,
    ) -> EndResult:
        """Commits or rolls back a transaction. Repeating an end writes nothing and returns `already`.

        `by_hand`: an operator decided it; the end is durable when this returns, also with ASYNC_FLUSH. Raises
        TransactionNotFoundError, AlreadyEndedError(outcome), WrongGroupError if a given group or id differs.
        """
    def discard(self, half_queue_offset: int, prepared_transaction_offset: int) -> EndResult:
        """Discards a pending transaction: moves its half to TRANS_CHECK_MAX_TIME_TOPIC. Durable when this returns.

        Raises as `end_transaction` does.
        """
    def resume(self, transaction_id: str) -> SendResult:
        """Stores the half of a discarded transaction again, as a new pending one. Durable when this returns.

        Raises TransactionNotFoundError, AlreadyEndedError.
        """
    def halves_due(self, limit: int) -> list[DueHalves]:
        """Returns up to `limit` due transactions, the longest due first, grouped by same facts.

        They stay due until `look_again`.
        """
    def look_again(self, half_queue_offset: int, in_ms: int, *, asked: bool = False) -> bool:
        """Makes a transaction due again after `in_ms`; `asked` counts a check that is sent. False: it has ended."""
    def look_again_all(self, due: DueHalves, in_ms: int) -> None:
        """Makes those of the transactions that are still pending due again after `in_ms`. Counts no check."""
    def hold_ends(self, half_queue_offsets: set[int] | None = None) -> None:
        """Refuses ends of these transactions by producers and checks until the next call; None: of all.

        An operator may end them (`by_hand`). They are held in memory only. An empty set holds none.
        """
    def holds_end(self, half_queue_offset: int | None = None) -> bool:
        """Returns whether the ends of a transaction are held; None: whether those of all are."""
    def check_unknown(
        self, half_queue_offset: int, prepared_transaction_offset: int, producer_group: str | None = None
    ) -> bool:
        """Records that a check was answered with UNKNOWN. False: it is not pending there, or not for that group."""
    def transaction_counts(self) -> tuple[dict[str, int], list[TopicEnds]]:
        """Returns the ends and check results since the store was opened: totals by name, and ends by topic."""
    def pending(self) -> list[tuple[str, str, int, int]]:
        """Returns the pending transactions as (topic, producer group, count, age of the oldest in ms)."""
    def next_due_in_ms(self) -> int | None:
        """Returns the time until the first pending transaction is due; None if none is pending."""
    def halves_waiting(self, after_half_queue_offset: int, limit: int) -> list[WaitingHalf]:
        """Returns pending transactions by half queue offset, beginning after `after_half_queue_offset` (-1: all)."""
    def half(self, half_queue_offset: int) -> StoredMessage:
        """Returns the half message as stored. Its topic is RMQ_SYS_TRANS_HALF_TOPIC, its destination `real_topic`."""
    def transaction(self, transaction_id: str) -> TransactionRow:
        """Returns the newest transaction with that id, from table, index and log. Raises TransactionNotFoundError."""
    def transactions(self) -> list[TransactionRow]:
        """Returns all transactions of the log, in order of their first half. Reads the whole log."""

    # Read
    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int = 32,
        tags: Sequence[str] | Sql | None = None,
    ) -> tuple[list[StoredMessage], int]:
        """Returns visible messages of a queue in order, and the queue offset to continue at (after skipped tags).

        Small messages of one call share memory: one that is kept keeps up to 64 KiB. Raises OffsetTooOldError below the
        queue's first entry. Returns an empty list at or above its end.
        """
    def pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int = 32,
        tags: Sequence[str] | Sql | None = None,
    ) -> tuple[list[StoredMessage], int]:
        """Reads as `read` does, for a consumer: `retry` can be called on the messages."""
    def append_copy(
        self,
        physical_offset: int,
        topic: str,
        queue_id: int,
        *,
        delay_level: int = 0,
        reconsume_times: int = 0,
        properties: Sequence[tuple[str, str]] = ...,
    ) -> SendResult:
        """Appends a copy of the record at a physical offset to another topic. `properties` override its own.

        An empty value removes a property. Raises as `read_at` and `append` do.
        """
    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first queue offset whose message was stored at that time or later, otherwise the queue's end."""
    def read_at(self, physical_offset: int) -> StoredMessage:
        """Returns the record that begins there. Raises MessageNotFoundError, OffsetTooOldError, StoreCorruptError."""
    def scan(self, physical_offset: int, max_messages: int = 1000) -> tuple[list[StoredMessage], int]:
        """Returns records of the log in order, of all topics, and the offset to continue at.

        Stops after the record that exceeds 4 MiB.
        """
    def query(self, topic: str, key: str, max_messages: int = 64) -> list[StoredMessage]:
        """Returns messages of a topic by unique id or key, newest first, found by the index.

        The index has only hashes, so the keys are compared. Stops after the message that exceeds 4 MiB.
        """
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the first queue offset that is left and one past the last visible; (0, 0) for an unknown queue."""
    def queues(self) -> list[tuple[str, int, int, int]]:
        """Returns (topic, queue id, first, end) of every queue, sorted."""
    def wait_for_messages(self, physical_offset: int, timeout_ms: int) -> int:
        """Waits until the visible end is above `physical_offset`, at most `timeout_ms`. Returns the visible end."""

    # Small files
    def config_text(self, name: str) -> str | None:
        """Returns a file of `config/` as strict JSON, or its `.bak`, or None. Reads a broker's lenient JSON, too."""
    def set_config_text(self, name: str, text: str) -> None:
        """Replaces a file of `config/` atomically and keeps the old one as `.bak`."""
    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Returns a group's queue offset or None. A reader sees what the writer has written to disk so far."""
    def set_consumer_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Sets a group's queue offset in memory; `write_offsets` writes it to disk.

        Raises InvalidOptionError above the queue's end or below 0.
        """
    def consumer_offsets(self) -> list[tuple[str, str, int, int]]:
        """Returns (topic, group, queue id, queue offset) of all groups."""
    def write_offsets(self) -> None:
        """Writes consumerOffset.json and delayOffset.json if an offset changed, with the progress of transactions."""
    def deliver_delayed(self, max_messages: int = 256) -> tuple[int, list[str], int | None]:
        """Delivers due messages: those with a delay level in one write, those with a time of their own in another.

        Returns how many; what was skipped because it could not be delivered, with reasons; and the milliseconds until
        the next is due, None if none waits.
        """
    def timed_messages(self) -> int:
        """Returns how many messages wait for their own time."""
    def first_timed(self, limit: int) -> list[tuple[int, int]]:
        """Returns (due in milliseconds since the epoch, physical offset) of the messages that are due first."""
    def hand_over_timed(self) -> tuple[int, list[str]]:
        """Moves all messages that wait for their own time to the timer of the RocketMQ 5 broker that opens the store next.

        From then on this store delivers and recalls none of them; the next opening by txstore takes them back. Returns
        how many; what could not be moved and is left, with reasons. Raises ReadOnlyError, OSErrors.
        """
    def recall(self, handle: str) -> str:
        """Ends the wait of the message that a recall handle names, so that it is never delivered; durable when it returns.

        Returns its unique id. Raises InvalidMessageError for another text, MessageNotFoundError if no such message
        waits, ReadOnlyError, OSErrors.
        """
    def log_files(self, limit: int) -> list[LogFile]:
        """Returns facts about the first files of the log, at most `limit`, without the one that is being written."""
    def remove_log_files(self, below: int, *, keep_unread: bool) -> Expired:
        """Removes the files of the log that end at or below `below`, oldest first, and what is derived from them.

        Stops at a file with a pending transaction or a waiting delayed or timed message, with `keep_unread` also at one with a
        message that a group of its topic has not acknowledged, and before the file that is being written. Raises
        ReadOnlyError, OSErrors.
        """
    def delete_queues(self, topic: str) -> int:
        """Removes a topic's messages, durably, and all but the last file of each queue. Returns how many messages.

        Their records stay in the log until retention removes them; the queues continue at their ends. Raises
        ReadOnlyError, OSErrors.
        """
    def delayed_messages(self, topic: str) -> int:
        """Returns how many delayed and timed messages wait for a topic, including retries of its messages."""
    def remove_consumer_offsets(self, topic: str, group: str) -> None:
        """Removes a group's offsets in a topic from memory; `write_offsets` writes it to disk. Raises ReadOnlyError."""
    def check_index(self) -> tuple[int, list[str]]:
        """Compares the whole index with the log. Returns how many entries point to records, and what is wrong."""
    def snapshot(self) -> None:
        """Syncs the derived files and writes a snapshot, so that the next open scans only from here."""
    def heal(self) -> OpenReport:
        """Returns the report of the healing at open. A writer's store is always healed."""

@final
class LoopStore:
    """Writes to an open store for an event loop. No call waits for a sync.

    A write returns what it wrote and `durable_first`, the end up to which the log must be durable before the write
    counts, or 0. With `wait` it may wait for a lock or for space. Without, it returns None where it would have to wait, and
    has changed nothing.
    """

    @staticmethod
    def start(store: Store) -> LoopStore:
        """Starts the thread that syncs. It ends with `stop`, or when this is no longer used."""
    def append(self, message: Message, queue_id: int, wait: bool, /) -> tuple[SendResult, int] | None:
        """Stores one message."""
    def append_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], wait: bool, /
    ) -> tuple[list[SendResult], int] | None:
        """Stores several messages in one write: either all or none."""
    def prepare(
        self, message: Message, queue_id: int, producer_group: str, owner: int, wait: bool, /
    ) -> tuple[SendResult, int] | None:
        """Stores a half message, as `Store.prepare` does."""
    def prepare_many(
        self, messages: Sequence[Message], queue_ids: Sequence[int], producer_group: str, owner: int, wait: bool, /
    ) -> tuple[SendResult, int] | None:
        """Stores the half messages of one transaction, as `Store.prepare_many` does."""
    def end_transaction(
        self,
        half_queue_offset: int,
        prepared_transaction_offset: int,
        wait: bool,
        /,
        *,
        commit: bool,
        transaction_id: str | None = None,
        producer_group: str | None = None,
        by_hand: bool = False,
    ) -> tuple[EndResult | TxStoreError, int] | None:
        """Ends a transaction, as `Store.end_transaction` does. An error may tell an outcome, so it is returned, and counts
        when the log is durable."""
    def request_sync(self, end: int) -> None:
        """Requests that the log becomes durable up to `end`. Never waits."""
    def durable(self) -> int:
        """Returns the end up to which the log is durable, and takes the events from `fileno`. Raises the error of a failed
        sync."""
    @property
    def durable_end(self) -> int:
        """The physical offset up to which the log is durable, also after a failed sync."""
    def fileno(self) -> int:
        """Returns the file descriptor that is readable after each sync."""
    def stop(self) -> None:
        """Ends the thread after the syncs that were requested. Idempotent."""

@final
class Scan:
    """A range of the log, exported through Arrow's C interfaces. Created by `txstore.scan`.

    `pyarrow.table(scan)`, `polars.DataFrame(scan)` and others can read it repeatedly. `view`, `columns`, `topics`,
    `transaction_types`: as in `txstore.scan`. `queues`: topic -> queue id -> (first queue offset, end); with
    `only_queues` no other queue is shown. `start`, `end`: physical offsets; `is_cut`: both were found by `log_cut` or
    `Scan.advance`, so a record across the end is an error. `skip_bytes_min`: bytes of the log that are skipped at
    least, where the queues' files show that no row is there. `shows_missing`: the view `transactions` also has a row for
    each op, and for the finals and discarded copies of each identity, whose half is not in the log, in the state
    `half_missing`. `statistics_path`: as in `txstore.scan`. `threads`: how many read each stream, `piece_bytes` of the
    log at a time; the view `transactions` uses one. The constructor opens nothing.

    Raises InvalidOptionError.
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        view: str = "messages",
        columns: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        topic_pattern: str | None = None,
        system_topics: bool = False,
        queues: Mapping[str, Mapping[int, tuple[int, int]]] | None = None,
        only_queues: bool = False,
        start_store_ms: int | None = None,
        end_store_ms: int | None = None,
        transaction_types: Sequence[str] | None = None,
        start: int | None = None,
        end: int | None = None,
        is_cut: bool = False,
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        skip_bad_records: bool = False,
        fail_on_data_loss: bool = True,
        skip_bytes_min: int | None = None,
        shows_missing: bool = False,
        statistics_path: str | PathLike[str] | None = None,
        threads: int = 1,
        piece_bytes: int = ...,
    ) -> Scan: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a new stream of record batches, as a capsule. Raises as `check` does."""
    def __arrow_c_schema__(self) -> object:
        """Returns the schema of the columns, as a capsule."""
    def frames(self, rows: int) -> Frames:
        """Reads the scan in frames of at least that many rows, except the last. Raises as `check` does."""
    def check(self) -> None:
        """Opens the log and checks the range, as a stream does first.

        Raises StoreIOError, ForeignStoreError, MissingFileError, InvalidOptionError, OffsetTooOldError.
        """
    def raise_failure(self) -> None:
        """Raises the engine's error of the last failed stream, once. Does nothing if none failed."""
    def count(self, start: int, end: int, *, most: int) -> int:
        """Returns how many rows of this scan a range between two records has, at most `most`.

        The end must not be after the visible end. In the views of ops, an op message counts as one row.
        """
    def advance(self, start: int, *, rows: int | None = None, bytes: int | None = None) -> int:
        """Returns the end of a range from `start` with that many rows of this scan, or bytes of the log.

        `start` must be the beginning of a record. The end is between two records, after at least one, and at most the
        visible end and the scan's end.
        """
    @property
    def columns(self) -> list[str]:
        """The column names, in order."""
    @property
    def bad_records(self) -> int:
        """The number of bad records that its streams have skipped so far."""
    @property
    def bad_bytes(self) -> int:
        """Bytes of the log that were skipped with them."""
    @property
    def lost_bytes(self) -> int:
        """Bytes of its range that retention has removed."""

def log_range(path: str | PathLike[str], known: int | None = None) -> tuple[int, int]:
    """Returns the first physical offset that is left of a store's log, and its visible end.

    `known` is the physical offset of a record at which the search for the end begins, best the last one found. Takes no
    lock. Raises as `Scan.check` does.
    """

def log_first(path: str | PathLike[str]) -> int:
    """Returns the first physical offset that retention has left."""

def log_time_range(
    path: str | PathLike[str],
    start: int,
    end: int,
    *,
    start_store_ms: int | None = None,
    end_store_ms: int | None = None,
) -> tuple[int, int]:
    """Returns the part of a range between two records that can hold records stored in a time range.

    Times are in ms since the epoch; the end is excluded. The part begins and ends between two records. It is found by
    samples, so a clock that stepped back for less than the time in which 1 MiB was written may hide records (see
    docs/data/spark.md).
    """

def log_boundary(path: str | PathLike[str], at: int) -> int:
    """Returns the first physical offset at or after `at` where a record begins, otherwise the visible end."""

def log_cut(path: str | PathLike[str], start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Splits a range into about `parts` even ones at record boundaries. None of them is empty."""

def log_topics(path: str | PathLike[str]) -> list[str]:
    """Returns the topics that have or will have queues in the store, including system topics, sorted."""

def log_queue_ids(path: str | PathLike[str], topic: str) -> list[int]:
    """Returns the numbers of a topic's queues: those of its settings, and those that have files. Sorted."""

def log_queue_range(path: str | PathLike[str], topic: str, queue_id: int) -> tuple[int, int] | None:
    """Returns the first queue offset of a queue that is still in the log, and the end.

    None if the queue has never had a message.
    """

def log_queue_offset_since(path: str | PathLike[str], topic: str, queue_id: int, store_ms: int) -> int | None:
    """Returns the first queue offset of a queue whose message was stored at or after a time, in ms since the epoch.

    None if there is no such message. It is found by binary search: a clock that stepped back can hide an earlier one.
    """

def log_queue_position(path: str | PathLike[str], topic: str, queue_id: int, queue_offset: int) -> int:
    """Returns the physical offset of the first message of a queue at or after a queue offset.

    The visible end if there is no such message.
    """

def log_half_progress(path: str | PathLike[str]) -> int:
    """Returns the half queue offset below which a broker finished all halves, even if the log does not show how.

    0 in a log that only txstore wrote.
    """

@final
class Frames:
    """The frames of a scan, one after the other. Created by `Scan.frames`."""

    def __iter__(self) -> Frames: ...
    def __next__(self) -> Frame:
        """Returns the next frame. Raises the engine's error if the log cannot be read."""

@final
class Frame:
    """A few batches of a scan, exported through Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a stream of the batches, as a capsule."""

@final
class SinkRows:
    """Rows that are to be messages, encoded without an object per row.

    `columns`: for each of topic, body, keys, tags, properties, queue_id and message_group that there is, arrays of
    pyarrow without children: its values as `binary` or `int64`; of lists their lengths as `int32`, and then the values of
    all rows. `topic` is that of rows without one. Raises InvalidMessageError for other arrays.
    """

    def __new__(cls, columns: Mapping[str, Sequence[object]], topic: str | None) -> SinkRows: ...
    @property
    def count(self) -> int:
        """How many rows there are."""
    def group_end(self, start: int, rows_max: int, bytes_max: int) -> int:
        """Returns where the rows end that begin at `start` and are stored by one request."""
    def topics(self, start: int, end: int) -> list[str]:
        """Returns the topics of rows, that of the first row first. Raises InvalidMessageError for a row without one."""
    def halves(
        self, start: int, end: int, queues: Mapping[str, SinkQueues], labels: Sequence[tuple[str, str]]
    ) -> SinkHalves:
        """Encodes rows as the half messages of one transaction. `labels` are properties of the first one.

        Raises InvalidMessageError, which shows the row, for one that cannot be sent, and InvalidOptionError for one that
        asks for a queue that is not in `queues`.
        """
    def batches(self, start: int, end: int, queues: Mapping[str, SinkQueues]) -> list[SinkBatch]:
        """Encodes rows as batches, one for each queue that they go to. Raises as `halves` does."""

@final
class SinkQueues:
    """The queues of a topic that accept messages, each its number and its id at its broker.

    `turn` is the index of the one that gets the rows that ask for no queue and have no message group.
    """

    def __new__(cls, queues: Sequence[tuple[int, int]], turn: int) -> SinkQueues: ...

@final
class SinkHalves:
    """The half messages of one transaction."""

    @property
    def message_id(self) -> str:
        """The unique id of the first one, which is that of the transaction."""
    @property
    def body(self) -> bytes:
        """The body of the request that stores them."""

@final
class SinkBatch:
    """Messages for one queue."""

    @property
    def topic(self) -> str:
        """The topic."""
    @property
    def queue(self) -> int:
        """The queue's number."""
    @property
    def count(self) -> int:
        """How many messages it has."""
    @property
    def body(self) -> bytes:
        """The body of the request that stores them."""

@final
class PulledRecords:
    """The records of answers to pulls, collected into Arrow batches, for readers of whole queues.

    `columns`: those of the view `messages`; the other options are those of `Scan`. Raises InvalidOptionError.
    """

    def __new__(
        cls,
        columns: Sequence[str],
        *,
        transaction_types: Sequence[str] | None = None,
        start_store_ms: int | None = None,
        end_store_ms: int | None = None,
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        skip_bad_records: bool = False,
    ) -> PulledRecords: ...
    def add(self, answer: RemotingCommand, start: int, end: int) -> None:
        """Sets the answer that `full` reads next. Records with a queue offset from `start` to before `end` become rows."""
    def full(self) -> Frame | None:
        """Reads the answer on. Returns a full batch, or None once the answer is read.

        Raises ProtocolError for a damaged record, unless bad records are skipped.
        """
    def rest(self) -> Frame | None:
        """Returns the batch as far as it is filled, or None if it has no rows."""
    @property
    def rows(self) -> int:
        """How many rows wait for `rest`."""
    @property
    def bad_records(self) -> int:
        """How many bad records were skipped."""

@final
class RecordName:
    """The facts that distinguish a record from any other at the same offset."""

    @property
    def physical_offset(self) -> int:
        """The position in the commit log, in bytes."""
    @property
    def message_id(self) -> str:
        """The unique id, otherwise the offset id."""
    @property
    def store_timestamp_ms(self) -> int:
        """When it was stored, in ms since the epoch."""

def log_store_id(path: str | PathLike[str]) -> str | None:
    """Returns the id of a store, 32 hex digits. None: neither this release nor a later one opened it for writing."""

def log_record(path: str | PathLike[str], at: int) -> RecordName | None:
    """Returns the identity of the record that begins at a physical offset; None if there is none."""

def log_last_record(path: str | PathLike[str], end: int) -> RecordName | None:
    """Returns the identity of the record before `end`, a record boundary; None if retention has removed it."""

def recall_names(handle: str) -> tuple[str, str]:
    """Returns the topic and the name of the broker in a recall handle. Raises InvalidMessageError."""

def delay_level_ms(level: int) -> int:
    """Returns the delay of one of RocketMQ's delay levels in ms: 0 for level 0; levels above 18 count as 18."""

def log_panics_as_json() -> None:
    """Makes the engine report a panic, which is a bug, as one JSON object on stderr.

    For programs, not for libraries: a process has only one panic hook.
    """

def allow_end_again(transaction_id: str, outcome: TransactionState, wanted: TransactionState) -> None:
    """Raises AlreadyEndedError if a transaction has ended with another outcome than an end wants.

    Raises InvalidOptionError for PENDING.
    """

def network_file_system(directory: str | PathLike[str]) -> str | None:
    """Returns the kind of network file system that a directory is on, as NFS; None for a local one. Raises OSError."""

def unique_id() -> str:
    """Returns a new unique id as RocketMQ's clients create it: 32 upper-case hex digits."""

def validate_topic(topic: str) -> None:
    """Raises InvalidNameError if clients may not send to a topic of this name."""

def validate_group(group: str) -> None:
    """Raises InvalidNameError if this is not a valid group name."""

def is_system_topic(topic: str) -> bool:
    """Returns whether a topic is one of RocketMQ's or txstore's own, which users cannot read."""

def java_hash_code(text: str) -> int:
    """Returns java.lang.String.hashCode of the text."""

@final
class StoreEpochs:
    """What an open store knows of epochs: which node may write the log."""

    def __new__(cls, store: Store) -> StoreEpochs: ...
    @property
    def text(self) -> str:
        """The text of `txstore/epochs.json`."""
    @property
    def number(self) -> int:
        """The last epoch of the log."""
    @property
    def accepted(self) -> int:
        """The highest epoch that this node has heard of."""
    @property
    def fenced(self) -> bool:
        """Whether another node has replaced this one as the source."""
    def accept(self, number: int, source: str | None = None) -> int:
        """Accepts the epoch of another node, or the one that this replica is about to begin. `source` is its address.

        Returns the end of the log, which is durable and final: a source writes nothing more. Raises InvalidOptionError
        if a higher epoch was accepted, or this one for another node.
        """
    def begin(self, *, partial: bool, instead_of: str | None = None) -> int:
        """Begins the accepted epoch at the end of a replica's log; returns the end. Then open the store again.

        `partial`: a replica did not accept it. `instead_of`: the address of the source that is replaced.
        """
    def follow(self, source: str, address: str) -> None:
        """Gives a replica what its source at `address` knows, as the text of its file."""
    def note_copies_required(self, required: int) -> None:
        """Notes how many copies a write has, from now on, before it is acknowledged."""
    def forget(self, name: str) -> bool:
        """Removes a replica. Returns False if it is not known."""
    def last_mark(self) -> tuple[int, int, int] | None:
        """Returns physical offset, size and CRC-32 of the last record; None in an empty log."""
    def has_record(self, mark: tuple[int, int, int]) -> bool:
        """Returns whether the log has the record of which `last_mark` returned this."""
    def common_end(self, other: str, other_end: int) -> int:
        """Returns how far the log is the same as that of a node with these epochs, which ends at `other_end`."""
    def keep_diverged(self, end: int, source: str, address: str, directory: str) -> tuple[int, int]:
        """Copies all after `end` to a directory of the store, with a report; the next opening as a replica cuts it.

        `source` are the epochs of the node at `address`. Returns how many records and bytes. Raises InvalidOptionError
        if records after `end` may have been acknowledged with two copies or more; then nothing has changed.
        """

def read_epochs(path: str | PathLike[str]) -> str | None:
    """Returns the text of the epochs of a store, which may be open; None if it has none. Raises StoreCorruptError."""

def strict_json(text: str) -> str:
    """Returns the JSON of a broker, whose objects may have numbers as keys, as strict JSON. Raises InvalidOptionError."""

def begin_replica(path: str | PathLike[str], source: str, address: str) -> None:
    """Makes the directory of a store that is not open a replica of the source with these epochs, at `address`."""

def begin_replica_of_rocketmq(
    path: str | PathLike[str],
    address: str,
    *,
    mapped_file_size_commit_log: int,
    mapped_file_size_consume_queue: int,
    max_hash_slot_num: int,
    max_index_num: int,
) -> None:
    """Makes the directory of a store that is not open a replica of the RocketMQ broker at `address`, with files of its
    sizes."""

@final
class BackupSource:
    """A store of which a backup is taken. Another process may write it. Takes no lock and writes nothing to it."""

    def __new__(cls, path: str | PathLike[str]) -> BackupSource:
        """Opens the store. Raises ForeignStoreError (also if no copy of it could be opened for writing), OSErrors."""
    def look(self) -> bool:
        """Takes the present range of the log, and its settings.

        False: writers kept changing the store in another way than by appending. Raises StoreCorruptError,
        MissingFileError, ForeignStoreError, OSErrors.
        """
    @property
    def first(self) -> int:
        """The physical offset at which the log began at the last look."""
    @property
    def end(self) -> int:
        """One past the last visible record at the last look."""
    @property
    def file_size(self) -> int:
        """Bytes of a log file; 0 if there are none."""
    @property
    def store_id(self) -> str | None:
        """The store's id, 32 hex digits. None: txstore has not opened it for writing."""
    def is_still(self) -> bool:
        """Returns whether the range of the last look is still what the writer shows.

        Appending and retention do not change it. A writer that opens the store after a crash may.
        """
    def begin_copy(self, to: str | PathLike[str]) -> None:
        """Writes settings, and the marks of a store that was not closed, to the directory of a copy."""
    def silent_queue_files(self) -> list[str]:
        """Returns the path of the last file of each queue that has had messages and has none in the range.

        Only these files tell where such a queue continues. Paths are relative to the store.
        """

@final
class LogFileContent:
    """What a file of a log holds."""

    @property
    def records(self) -> int:
        """How many records there are."""
    @property
    def crc32(self) -> int:
        """The CRC-32 of its bytes up to the log's end, as `zlib.crc32` returns it."""

def verify_log_file(path: str | PathLike[str], file_size: int, base: int, end: int) -> LogFileContent:
    """Verifies each record, by each CRC that it has, of the log file of a store that begins at `base`, up to `end`.

    Raises StoreCorruptError at the first byte that is not part of a whole record, and OSErrors.
    """

@final
class Examiner:
    """Examines the files of a store that may not open, one log file per step. Writes nothing and takes no lock."""

    def __new__(cls, path: str) -> Examiner: ...
    @property
    def files(self) -> int:
        """The number of files of the log."""
    def step(self) -> bool:
        """Examines the next file of the log. False: there are no more. Raises ForeignStoreError, OSErrors."""
    def facts(self) -> str:
        """Returns the findings as JSON. Call it once, after the last step."""

def mend_store(path: str, copies: str, copies_below: str) -> str:
    """Repairs a damaged store so that it can be opened, and returns what was done, as JSON.

    First copies everything that may change to `copies_below` in the directory `copies`, with a `report.json`. Raises
    StoreLockedError, OSErrors.
    """

class RequestCode(IntEnum):
    """The request codes of RocketMQ's remoting protocol, with RocketMQ's names, and txstore's own, TXSTORE_…."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    BROKER_CLOSE_CHANNEL_REQUEST = 1014
    CHECK_NOT_ACTIVE_BROKER_REQUEST = 1015
    GET_BROKER_LIVE_INFO_REQUEST = 1016
    GET_SYNC_STATE_DATA_REQUEST = 1017
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = 1018
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    SWITCH_TIMER_ENGINE = 5001
    TXSTORE_ADMIN = 31001
    TXSTORE_PREPARE = 31002
    TXSTORE_COPY = 31003
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    POP_ROLLBACK = 200056
    BATCH_ACK_MESSAGE = 200151

class ResponseCode(IntEnum):
    """The response codes of RocketMQ's remoting protocol, with RocketMQ's names."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500

@final
class RequestRule:
    """A row of the table of request codes: what answers a request, and which permission it needs."""

    @property
    def code(self) -> int:
        """The request code."""
    @property
    def name(self) -> str:
        """RocketMQ's name."""
    @property
    def answered_by(self) -> Literal["engine", "engine or Python", "Python", "client"] | None:
        """`client`: servers send it to clients. None: the request is refused with REQUEST_CODE_NOT_SUPPORTED."""
    @property
    def permission(self) -> str:
        """What an account needs, for people."""

def request_rules() -> list[RequestRule]:
    """Returns the rows of all request codes, sorted by number."""

@final
class RemotingRequest(RemotingCommand):
    """A client's request that Python answers."""

    @property
    def number(self) -> int:
        """Identifies the request in its answer; 0 for a one-way request."""
    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str:
        """The client's address, for people."""
    @property
    def account(self) -> str | None:
        """The account that signed it. Verified only if the server has accounts; otherwise meaningless."""

@final
class UnknownTopic:
    """Asks whether a topic exists that the engine does not know.

    Call `set_topic`, then `answer` with 0; or refuse the client by `answer` with another code.
    """

    @property
    def number(self) -> int: ...
    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def create(self) -> bool:
        """Whether the client wants to send: then the topic may be created."""

@final
class UnknownGroup:
    """Asks whether a consumer group exists that the engine does not know.

    Call `set_group`, then `answer` with 0; or refuse the client by `answer` with another code.
    """

    @property
    def number(self) -> int: ...
    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def name(self) -> str: ...

@final
class NewProducer:
    """Asks for the number of a producer group that is new on its connection.

    Call `answer_producer`; or refuse the client by `answer` with a code other than 0.
    """

    @property
    def number(self) -> int: ...
    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def account(self) -> str | None:
        """As in `RemotingRequest`."""

@final
class SlaveConnected:
    """Asks whether a slave of RocketMQ may copy the log from the end of its own on.

    Call `answer` with 0; with SYSTEM_BUSY, it is asked again after a second; with another code, it is disconnected.
    """

    @property
    def number(self) -> int: ...
    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def physical_offset(self) -> int:
        """Where the slave's log ends. 0: it is empty."""

@final
class ConnectionClosed:
    """Reports that a connection has ended."""

    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...

@final
class ConnectionRefused:
    """Reports that a connection was closed because of what the client sent."""

    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def reason(self) -> str: ...

@final
class MessageSkipped:
    """Reports that a group cannot read a damaged message, and continues after it."""

    @property
    def group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def reason(self) -> str:
        """What is wrong with the message."""

@final
class RequestDenied:
    """Reports that a request was denied. Only the first one of a connection is reported."""

    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def request(self) -> str:
        """The request's code, or the name of the RPC."""
    @property
    def reason(self) -> str:
        """What the account lacks."""

@final
class ClientAnswer(RemotingCommand):
    """A client's response to a request of `RemotingServer.ask`, with the `opaque` that `ask` returned."""

    @property
    def connection(self) -> int: ...
    @property
    def address(self) -> str: ...

@type_check_only
class _TlsFiles(Protocol):
    """The TLS files of a server, as PEM. `required`: plain connections are refused."""

    @property
    def certificate(self) -> bytes: ...
    @property
    def key(self) -> bytes: ...
    @property
    def client_authority(self) -> bytes | None: ...
    @property
    def required(self) -> bool: ...
    @property
    def handshake_seconds(self) -> float: ...

@type_check_only
class _Account(Protocol):
    """An account and its permissions, as bits: 1 send, 2 read."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def admin(self) -> bool: ...
    @property
    def default_topic(self) -> int: ...
    @property
    def default_group(self) -> int: ...
    @property
    def topics(self) -> dict[str, int]: ...
    @property
    def groups(self) -> dict[str, int]: ...

@type_check_only
class _Secrets(Protocol):
    """TLS files (None: plain connections) and accounts (None: every client may do everything)."""

    @property
    def tls(self) -> _TlsFiles | None: ...
    @property
    def accounts(self) -> Sequence[_Account] | None: ...

@type_check_only
class _Limits(Protocol):
    """The limits for clients. Times are in seconds."""

    @property
    def connections_max(self) -> int: ...
    @property
    def memory_max(self) -> int:
        """Bytes."""
    @property
    def idle_timeout(self) -> float: ...
    @property
    def first_frame_timeout(self) -> float: ...
    @property
    def frame_timeout(self) -> float: ...
    @property
    def unread_timeout(self) -> float: ...

@type_check_only
class _Grpc(Protocol):
    """The options of the gRPC protocol."""

    @property
    def listen(self) -> str:
        """HOST:PORT."""
    @property
    def broker_name(self) -> str: ...
    @property
    def checks_message_types(self) -> bool: ...

@type_check_only
class _Ha(Protocol):
    """The port for slaves of RocketMQ."""

    @property
    def listen(self) -> str:
        """HOST:PORT."""
    @property
    def allow(self) -> Sequence[tuple[IPv4Address | IPv6Address, int]]:
        """The networks from which slaves may connect, in addition to this machine: an address, and the number of its
        leading bits that count."""

@final
class LocalListener:
    """A listening Unix socket of a store, for which a server is started when a client connects."""

    @staticmethod
    def bind(address: str) -> LocalListener:
        """Listens at a path, or at an abstract name, `@NAME`. Raises StoreIOError."""
    def wait(self) -> bool:
        """Waits until a client has connected. Returns False if `wake` was called instead."""
    def wake(self) -> None:
        """Ends a call of `wait`, the next one if none is waiting."""
    @property
    def descriptors(self) -> list[int]:
        """The numbers of its descriptors, which a forked child closes."""

@final
class RemotingServer:
    """A listening server. The engine answers sends, ends and pulls; the other requests are events for Python."""

    @staticmethod
    def start(
        store: Store,
        *,
        listen: Sequence[str],
        limits: _Limits,
        unix: str | PathLike[str] | None = None,
        local: LocalListener | None = None,
        io_threads: int = 2,
        broker_name: str = "txstore",
        secrets: _Secrets | None = None,
        copies: tuple[int, float, bool] | None = None,
        grpc: _Grpc | None = None,
        ha: _Ha | None = None,
    ) -> RemotingServer:
        """Starts to listen. `broker_name`: in recall handles. `grpc`: the gRPC protocol, None if it is not served. `ha`: the
        same of the port at which slaves of RocketMQ copy the log.

        `copies`: how many copies of the log a write needs, how many seconds a client waits for them, and whether they
        must be synced.

        Raises InvalidOptionError for an invalid address or certificate, StoreIOError for an address in use or not
        available.
        """
    @staticmethod
    def check_secrets(secrets: _Secrets) -> None:
        """Raises InvalidOptionError for files with which `start` would fail. Starts nothing."""
    def set_secrets(self, secrets: _Secrets) -> None:
        """Replaces the secrets that are not None. Raises InvalidOptionError; then nothing changes."""
    @property
    def addresses(self) -> list[str]:
        """The TCP addresses that it listens at, in the order of `listen`."""
    @property
    def grpc_address(self) -> str | None:
        """The address of the gRPC protocol; None if it is not served."""
    @property
    def ha_address(self) -> str | None:
        """The address at which slaves of RocketMQ copy the log; None if it is not served."""
    def replicas(self) -> list[tuple[str, int, int, int, int]]:
        """Returns the replicas that have asked: name, end of the copy, milliseconds since the last request, how many
        bytes the copy lacks, and milliseconds since the first of them was stored."""
    def slaves(self) -> list[tuple[int, int]]:
        """Returns the connections over which slaves of RocketMQ copy the log, with the end that each reported last."""
    def next_event(
        self, timeout_ms: int
    ) -> (
        RemotingRequest
        | UnknownTopic
        | UnknownGroup
        | NewProducer
        | SlaveConnected
        | ConnectionClosed
        | ConnectionRefused
        | RequestDenied
        | ClientAnswer
        | MessageSkipped
        | None
    ):
        """Waits for the next event. Returns None if there is none in this time."""
    def answer(
        self,
        event: RemotingRequest | UnknownTopic | UnknownGroup | NewProducer | SlaveConnected,
        code: int,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> bool:
        """Answers an event. Returns False if the client no longer waits."""
    def answer_producer(self, event: NewProducer, number: int) -> bool:
        """Answers with the producer's number. Returns False if the client no longer waits."""
    def send(self, connection: int, code: int, fields: Mapping[str, str], body: bytes | None = None) -> bool:
        """Sends a one-way request to a client. False: the connection is closed or its output is full."""
    def ask(self, connection: int, code: int, fields: Mapping[str, str], body: bytes | None = None) -> int | None:
        """Sends a request that the client answers by a `ClientAnswer`. Returns its `opaque`; None: it was not sent."""
    def may_send(self, account: str | None, topic: str) -> bool:
        """Returns whether an account may publish to a topic now. Always True without accounts."""
    def may_read(self, account: str | None, topic: str) -> bool:
        """Returns whether an account may read a topic now. Always True without accounts, and for None, a client that
        needs none."""
    def take_answers(self, taken: bool) -> None:
        """Passes END_TRANSACTION on if it answers a check of a replica, whose engine ends no transaction."""
    def accepts_checks(self, connection: int) -> bool:
        """Returns whether a check would reach a client now. False for a gRPC client without a stream."""
    def send_check(
        self, connection: int, account: str | None, store: Store, half_queue_offset: int, broker_name: str
    ) -> bool:
        """Sends a check to a client. Raises TransactionNotFoundError.

        False: the connection is closed, its output is full, or its account may not publish to the half message's topic.
        """
    def forget_producer(self, connection: int, group: str) -> None:
        """Forgets a producer group. Its next half message on this connection causes a `NewProducer` again."""
    def close_connection(self, connection: int) -> None: ...
    def set_topic(self, topic: str, read_queues: int, write_queues: int, message_type: str | None = None) -> None:
        """Makes a topic known to the data path. `message_type`: NORMAL, FIFO, DELAY or TRANSACTION, the only type that
        gRPC clients may send to it; anything else: all. Raises InvalidNameError."""
    def forget_topic(self, topic: str) -> None:
        """Forgets a topic. Its next use causes an `UnknownTopic` again."""
    def set_group(self, group: str, fifo: bool, retries_max: int) -> None:
        """Makes a consumer group known, with its settings for clients of the gRPC protocol."""
    def grpc_members(self, group: str) -> int:
        """Returns the number of a group's members that are clients of the gRPC protocol."""
    def grpc_clients_of(self, group: str) -> list[tuple[str, str, str, int]]:
        """Returns a group's members that are clients of the gRPC protocol: client id, address, language, and the
        milliseconds since the last request."""
    def grpc_readers(self, topic: str) -> list[str]:
        """Returns the groups with members of the gRPC protocol that read a topic."""
    def grpc_progress(self, group: str) -> list[tuple[str, str, int, int, int, int]]:
        """Returns, for each queue that a group reads by the gRPC protocol: the topic to which it subscribes; the topic
        and the queue, also those of its retry topic; and the numbers of messages that clients have now, that wait to be
        delivered again, and that are acknowledged above one that is not. Empty if the group reads by another protocol."""
    def forget_group(self, group: str) -> None:
        """Forgets a group's settings. Its next use causes an `UnknownGroup` again."""
    def set_subscriptions(self, group: str, wanted: Sequence[tuple[str, Sequence[str] | Sql | None, int]]) -> None:
        """Sets a group's subscriptions: (topic, tags, an expression or None for all, version)."""
    def set_orderly(self, group: str, orderly: bool) -> None:
        """Sets whether a group locks its queues."""
    def counters(self) -> dict[str, int]:
        """Returns counters and current `connections`, `grpc_clients`, `grpc_consumers` (members of their groups),
        `pulls_held`, `requests_waiting`, `memory_held`
        (bytes that clients hold) and `memory_uncounted` (bytes that the process has taken since the server started,
        without those)."""
    def sent(self) -> list[tuple[str, str, int, int, list[tuple[int | None, int]]]]:
        """Returns what clients sent: (topic, kind, messages, bytes, histogram of (upper bound in bytes, messages))."""
    def handed_out(self) -> list[tuple[str, str, int, int]]:
        """Returns what was delivered to clients: (topic, consumer group, messages, bytes)."""
    def stop_listening(self) -> None:
        """Stops accepting connections and requests. Requests in flight are still answered."""
    def stop(self) -> None:
        """Closes all connections and ends the server's threads. Idempotent."""

@disjoint_base
class RemotingCommand:
    """One request or response of RocketMQ's protocol, as it arrived."""

    @property
    def code(self) -> int:
        """The request code, or in a response the response code; 0 is success."""
    @property
    def opaque(self) -> int:
        """Identifies a request on its connection. Its response has the same value."""
    @property
    def language(self) -> str:
        """RocketMQ's name of the sender's language, such as `JAVA`; `OTHER` if it has none."""
    @property
    def version(self) -> int:
        """RocketMQ's number of the sender's version."""
    @property
    def is_response(self) -> bool: ...
    @property
    def is_one_way(self) -> bool:
        """Whether the request expects no response."""
    @property
    def remark(self) -> str | None:
        """A text for people."""
    @property
    def ext_fields(self) -> dict[str, str]:
        """The header's fields (a fresh dict)."""
    @property
    def body(self) -> bytes: ...
    def response(self, code: int, remark: str | None = None, *, body: bytes | None = None) -> bytes:
        """Returns the frame of a response to this request."""

@final
class FrameReader:
    """Parses commands from the bytes of one connection, which arrive in pieces of any size."""

    def __new__(cls) -> FrameReader: ...
    def feed(self, data: bytes) -> list[RemotingCommand]:
        """Adds bytes and returns the commands that are complete. After a ProtocolError the connection is unusable."""

def encode_request(
    code: int, opaque: int, ext_fields: dict[str, str], body: bytes | None = None, *, one_way: bool = False
) -> bytes:
    """Returns a request's frame with a JSON header. Raises InvalidMessageError if it exceeds the protocol's limits."""

def decode_records(data: bytes, *, unacknowledged: bool = False) -> list[StoredMessage]:
    """Decodes the concatenated records of a response. Raises ProtocolError.

    `unacknowledged`: the messages are for a consumer, so `retry` can be called on them.
    """

def properties_text(message: Message, unique_id: str, more: Sequence[tuple[str, str]]) -> str:
    """Returns a message's properties, its unique id and `more` as the text of a request."""

def batch_body(messages: Sequence[Message], unique_ids: Sequence[str], queue_ids: Sequence[int] | None = None) -> bytes:
    """Returns the body of a batch: messages, each with its unique id. Raises InvalidMessageError.

    `queue_ids`: they are the half messages of one transaction, and each contains its real topic and queue.
    """
