"""The settings of a broker: RocketMQ's names in snake_case, with its defaults, units and ranges.

In:     keyword options as a user writes them.
Out:    one frozen `BrokerConfig`.
Always: every value of a BrokerConfig is within its range. A duration is a `timedelta`.
By hand: checking the values, because the core wheel needs no other package.
Not here: the effect of the settings, and whether sizes agree with an existing store (the engine checks that).
"""

import dataclasses
import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

from txstore.errors import InvalidOptionError

__all__ = [
    "BrokerConfig",
    "BrokerOptions",
    "Duration",
    "FlushDisk",
    "FlushDiskType",
    "as_timedelta",
    "milliseconds",
    "must_not_be_negative",
]

Duration: TypeAlias = timedelta | float
"""A time span as a user may write it: a `timedelta`, or a number of seconds."""

_LOG_FILE_BYTES_MAX = 2**31 - 1  # RocketMQ's MappedFile counts its bytes in a Java int.
_JAVA_INT_MAX = 2**31 - 1


class FlushDiskType(enum.StrEnum):
    """What is durable when a writing call returns."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    """The data is in the page cache: a killed process loses nothing, lost power at most `flush_interval_commit_log`."""
    SYNC_FLUSH = "SYNC_FLUSH"
    """The data is on disk."""


FlushDisk: TypeAlias = FlushDiskType | Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
"""A FlushDiskType as a user may write it."""


def as_timedelta(value: Duration, option: str) -> timedelta:
    """Returns `value` as a `timedelta`; a number counts seconds. Raises InvalidOptionError naming `option`."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(
            f"option {option}: expected a duration, got {value!r}\nhint: a number of seconds, or a timedelta",
            option=option,
        )
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise InvalidOptionError(
            f"option {option}: must be a shorter duration, got {value!r} seconds", option=option
        ) from error


def milliseconds(value: Duration) -> int:
    """Returns a duration in whole milliseconds."""
    span = value if isinstance(value, timedelta) else timedelta(seconds=value)
    return span // timedelta(milliseconds=1)


def must_not_be_negative(option: str, value: int) -> None:
    """Raises InvalidOptionError for an offset or a queue id that is negative, or larger than Java's long."""
    if not 0 <= value < 2**63:
        raise InvalidOptionError(f"{option} must be between 0 and 2**63 - 1, got {value!r}", option=option)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """The settings of a broker. Durations accept a `timedelta` or a number of seconds and are kept as `timedelta`.

    Raises InvalidOptionError for a value of the wrong type or out of its range.
    """

    flush_disk_type: FlushDisk = FlushDiskType.ASYNC_FLUSH
    """What is durable when a send or an end returns (RocketMQ's flushDiskType; default ASYNC_FLUSH).

    SYNC_FLUSH makes half messages durable, too, whatever `transaction_flush_disk_type` says. An end by hand, a discard
    and a resume are always durable when the call returns."""
    transaction_flush_disk_type: FlushDisk = FlushDiskType.SYNC_FLUSH
    """txstore's own: what is durable when a half message is acknowledged, before its local transaction begins.

    With SYNC_FLUSH (the default), lost power never keeps a local transaction and loses its message. ASYNC_FLUSH is
    RocketMQ's default."""
    flush_interval_commit_log: Duration = timedelta(milliseconds=500)
    """How often ASYNC_FLUSH syncs the log (flushIntervalCommitLog; 1 ms to 1 h)."""
    mapped_file_size_commit_log: int | None = None
    """Bytes of a commit log file (mappedFileSizeCommitLog); None: as the store has it, 1 GiB for a new one."""
    mapped_file_size_consume_queue: int | None = None
    """Bytes of a queue file (mappedFileSizeConsumeQueue), a multiple of 20; None: as the store has it, 6 MB if new."""
    max_hash_slot_num: int | None = None
    """Slots of an index file (maxHashSlotNum); None: as the store has it, 5,000,000 for a new one."""
    max_index_num: int | None = None
    """Entries of an index file (maxIndexNum); None: as the store has it, 20,000,000 for a new one."""
    max_message_size: int = 4 * 1024 * 1024
    """Bytes of the largest body (maxMessageSize; 1 byte to 128 MiB)."""
    enabled_append_prop_crc: bool | None = None
    """Whether a record's CRC covers all of it (enabledAppendPropCRC); None: as the store has it, on for a new one."""
    transaction_op_msg_max_size: int = 4096
    """Bytes of the largest op message's body (transactionOpMsgMaxSize; 64 to 65,536)."""
    transaction_timeout: Duration = timedelta(seconds=6)
    """Age at which a pending transaction is first checked (transactionTimeOut; 0 to 30 days)."""
    transaction_check_interval: Duration = timedelta(seconds=30)
    """Time from one check of a transaction to the next (transactionCheckInterval; 1 ms to 30 days)."""
    transaction_check_max: int = 15
    """Checks after which a pending transaction is discarded (transactionCheckMax; 1 to 10,000)."""
    transaction_check_back_off: float = 1.0
    """txstore's own: factor from one check interval to the next (1.0 to 10.0; 1.0 is RocketMQ's constant interval)."""
    transaction_check_time_limit: Duration = timedelta(seconds=30)
    """txstore's own: time after which a check counts as UNKNOWN (1 ms to 1 day)."""
    check_threads: int = 4
    """Threads that ask listeners at the same time (RocketMQ's checkThreadPoolMaxSize; 1 to 256)."""
    file_reserved_time: Duration = timedelta(hours=72)
    """Age at which a commit log file is deleted if it was read (fileReservedTime; 1 s to 100 years).

    Also the age at which a pending transaction is checked once more, and discarded if that does not end it. While no
    producer of its group can be asked, it waits and keeps its file."""
    delete_when: str | None = None
    """Hours of the day, local time, in which age deletes files, as `04` or `04;16` (deleteWhen); None: at any time."""
    clean_resource_interval: Duration = timedelta(seconds=10)
    """Time between two searches for files to delete (cleanResourceInterval, in ms there; 1 ms to 1 day)."""
    delete_unread: bool = False
    """txstore's own: whether age also deletes files that a consumer group has not read to the end."""
    store_bytes_max: int | None = None
    """txstore's own: size of the commit log, in bytes, above which its oldest files are deleted, read or not, whatever
    their age, but never one with a pending transaction. At least the size of two files
    (`mapped_file_size_commit_log`). None: no limit."""
    reject_late_end: bool = False
    """RocketMQ's rule: an end after the message's own immunity time is refused, and a check decides."""
    pending_transactions_max: int = 10_000_000
    """txstore's own: pending transactions at which `prepare` raises TooManyPendingError (1 to 1,000,000,000)."""
    timer_max_delay_sec: Duration = timedelta(days=3)
    """How far ahead a message's time (`deliver_at`) may be (timerMaxDelaySec; 1 s to 3,650 days)."""
    timed_messages_max: int = 10_000_000
    """txstore's own: messages waiting for their time at which sending another one raises TooManyPendingError (1 to
    1,000,000,000). Each takes about 30 bytes of memory."""
    auto_create_topic_enable: bool = True
    """Whether sending to an unknown topic creates it (autoCreateTopicEnable)."""
    default_topic_queue_nums: int = 4
    """Queues of a topic that sending creates (defaultTopicQueueNums, as RocketMQ's clients have it; 1 to 1,024)."""
    flush_consumer_offset_interval: Duration = timedelta(seconds=5)
    """How often consumer offsets are written (flushConsumerOffsetInterval; 1 ms to 1 day)."""
    snapshot_interval: Duration = timedelta(seconds=60)
    """txstore's own: how often a snapshot is written, from which the next opening starts (1 ms to 30 days)."""
    broker_host: str = "127.0.0.1"
    """Address in offset message ids (brokerIP1)."""
    broker_port: int = 10911
    """Port in offset message ids (listenPort; 0 to 65,535)."""
    cluster_name: str = "DefaultCluster"
    """RocketMQ's brokerClusterName."""
    broker_name: str = "txstore"
    """RocketMQ's brokerName."""

    def __post_init__(self) -> None:
        for name, (low, high) in _DURATIONS.items():
            span = as_timedelta(getattr(self, name), name)
            _check_range(name, span, low, high)
            object.__setattr__(self, name, span)
        for name, (least, most) in _NUMBERS.items():
            _check_number(name, getattr(self, name), least, most)
        for name in _FLAGS:
            _check_type(name, getattr(self, name), bool, "True or False")
        for name in ("broker_host", "cluster_name", "broker_name"):
            _check_type(name, getattr(self, name), str, "a str")
        if self.mapped_file_size_consume_queue is not None and self.mapped_file_size_consume_queue % 20:
            raise _invalid("mapped_file_size_consume_queue", "must be a multiple of 20, the bytes of one entry")
        if self.enabled_append_prop_crc is not None:
            _check_type("enabled_append_prop_crc", self.enabled_append_prop_crc, bool, "True, False or None")
        if self.delete_when is not None:
            _check_type("delete_when", self.delete_when, str, "a str or None")
            _hours(self.delete_when)
        for name in ("flush_disk_type", "transaction_flush_disk_type"):
            object.__setattr__(self, name, _flush_disk_type(name, getattr(self, name)))

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The hours of `delete_when`; all hours if it is None."""
        return tuple(range(24)) if self.delete_when is None else _hours(self.delete_when)

    @classmethod
    def from_options(cls, options: Mapping[str, object], base: "BrokerConfig | None" = None) -> "BrokerConfig":
        """Returns `base` (default: all defaults) with `options` applied.

        Raises InvalidOptionError for an unknown option, with the nearest known name, and for an invalid value.
        """
        if base is not None and not isinstance(base, cls):
            raise InvalidOptionError(
                f"option config: expected a BrokerConfig, got {type(base).__name__}\nhint: pass keywords: **settings",
                option="config",
            )
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
                raise InvalidOptionError(f"unknown option {name}\nhint: {hint}", option=name)
        return dataclasses.replace(base if base is not None else cls(), **options)  # type: ignore[arg-type]


class BrokerOptions(TypedDict, total=False):
    """The options of `txstore.open`. `BrokerConfig` describes them under the same names."""

    flush_disk_type: FlushDisk
    transaction_flush_disk_type: FlushDisk
    flush_interval_commit_log: Duration
    mapped_file_size_commit_log: int | None
    mapped_file_size_consume_queue: int | None
    max_hash_slot_num: int | None
    max_index_num: int | None
    max_message_size: int
    enabled_append_prop_crc: bool | None
    transaction_op_msg_max_size: int
    transaction_timeout: Duration
    transaction_check_interval: Duration
    transaction_check_max: int
    transaction_check_back_off: float
    transaction_check_time_limit: Duration
    check_threads: int
    file_reserved_time: Duration
    delete_when: str | None
    clean_resource_interval: Duration
    delete_unread: bool
    store_bytes_max: int | None
    reject_late_end: bool
    pending_transactions_max: int
    timer_max_delay_sec: Duration
    timed_messages_max: int
    auto_create_topic_enable: bool
    default_topic_queue_nums: int
    flush_consumer_offset_interval: Duration
    snapshot_interval: Duration
    broker_host: str
    broker_port: int
    cluster_name: str
    broker_name: str


_DAY = timedelta(days=1)
_MS = timedelta(milliseconds=1)
_DURATIONS: dict[str, tuple[timedelta, timedelta]] = {
    "flush_interval_commit_log": (_MS, timedelta(hours=1)),
    "transaction_timeout": (timedelta(0), 30 * _DAY),
    "transaction_check_interval": (_MS, 30 * _DAY),
    "transaction_check_time_limit": (_MS, _DAY),
    "file_reserved_time": (timedelta(seconds=1), 36_525 * _DAY),
    "clean_resource_interval": (_MS, _DAY),
    "flush_consumer_offset_interval": (_MS, _DAY),
    "snapshot_interval": (_MS, 30 * _DAY),
    "timer_max_delay_sec": (timedelta(seconds=1), 3_650 * _DAY),
}
_NUMBERS: dict[str, tuple[int, int]] = {
    "mapped_file_size_commit_log": (4096, _LOG_FILE_BYTES_MAX),
    "mapped_file_size_consume_queue": (20, _LOG_FILE_BYTES_MAX),
    "max_hash_slot_num": (1, _JAVA_INT_MAX // 4),
    "max_index_num": (2, _JAVA_INT_MAX // 20),
    "max_message_size": (1, 128 * 1024 * 1024),
    "transaction_op_msg_max_size": (64, 65_536),
    "transaction_check_max": (1, 10_000),
    "transaction_check_back_off": (1, 10),
    "check_threads": (1, 256),
    "pending_transactions_max": (1, 1_000_000_000),
    "timed_messages_max": (1, 1_000_000_000),
    "default_topic_queue_nums": (1, 1024),
    "broker_port": (0, 65_535),
    "store_bytes_max": (8192, 2**63 - 1),
}
_FLAGS = ("reject_late_end", "auto_create_topic_enable", "delete_unread")
_MAY_BE_NONE = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
    "store_bytes_max",
)
_MAY_BE_FLOAT = ("transaction_check_back_off",)


def _invalid(option: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {option}: {what}", option=option)


def _check_range(option: str, value: timedelta, low: timedelta, high: timedelta) -> None:
    if not low <= value <= high:
        raise _invalid(option, f"must be between {_text(low)} and {_text(high)}, got {_text(value)}")


def _text(span: timedelta) -> str:
    return f"{span.total_seconds():,.15g} s"


def _check_number(option: str, value: object, low: int, high: int) -> None:
    if value is None and option in _MAY_BE_NONE:
        return
    kinds = (int, float) if option in _MAY_BE_FLOAT else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _invalid(option, f"expected a number, got {value!r}\nhint: {low} to {high}")
    if not low <= value <= high:
        raise _invalid(option, f"must be between {low} and {high}, got {value}")


def _check_type(option: str, value: object, kind: type, wanted: str) -> None:
    if not isinstance(value, kind):
        raise _invalid(option, f"expected {wanted}, got {value!r}")


def _hours(text: str) -> tuple[int, ...]:
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(hour.isascii() and hour.isdecimal() and int(hour) < 24 for hour in hours):
        raise _invalid("delete_when", f"{text!r} contains no hours\nhint: 00 to 23, several as 04;16")
    return tuple(int(hour) for hour in hours)


def _flush_disk_type(option: str, value: object) -> FlushDiskType:
    try:
        return FlushDiskType(str(value))
    except ValueError:
        raise _invalid(option, f"must be ASYNC_FLUSH or SYNC_FLUSH, got {value!r}") from None
