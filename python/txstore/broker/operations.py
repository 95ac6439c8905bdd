"""Operations: what operators see of an open store at one look, and in pages.

In:     an open store; names of topics and groups.
Out:    an `Overview`, and rows of topics and groups.
Always: reads only. The overview's sums over all queues and groups are kept for some seconds, so that many viewers cost
        as much as one.
Not here: what a server knows besides its store (`server/administration`), how it is shown (`console`).
"""

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest

from txstore._native import DEAD_LETTER_PREFIX, DISCARD_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, StoreStat, is_system_topic
from txstore.broker.broker import EmbeddedBroker
from txstore.broker.delay import LEVEL_SECONDS
from txstore.broker.lists import Lists
from txstore.config import BrokerConfig, milliseconds
from txstore.errors import (
    AlreadyEndedError,
    MessageNotFoundError,
    OffsetTooOldError,
    ReadOnlyError,
    TransactionNotFoundError,
    TxStoreError,
)
from txstore.message import TransactionState, dead_letter_topic
from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import RowForwarder

__all__ = [
    "GroupLag",
    "GroupRow",
    "MemberRow",
    "Operations",
    "OutboxFacts",
    "Overview",
    "PendingGroup",
    "ReplicaRow",
    "TopicRow",
]

_KEPT_SECONDS = 2.0
_TOP = 10
_OLDEST_MAX = 2_000
_DUE_NEXT = 32
_STATISTICS = sorted(name for name in vars(StoreStat) if not name.startswith("_"))
_OPENING = ("clean", "scanned_from", "scanned_bytes", "truncated_bytes", "healed_ops", "duration")


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """The pending transactions of one producer group in one topic."""

    producer_group: str
    topic: str
    count: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group's messages that are not acknowledged, or its dead letters."""

    group: str
    count: int


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A copy of the store, as its server sees it."""

    name: str
    end: int
    """The end of its copy, in bytes of the log."""
    silent_ms: int
    """Since its last request."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A store at one moment."""

    path: str
    taken: datetime
    """When the sums over queues and groups were made, in UTC."""
    read_only: bool
    failure: str | None
    """Why the store takes no messages; None if it does."""
    warnings: tuple[str, ...]
    """What opening the store reported."""
    log_first: int
    log_end: int
    log_durable: int
    disk_free: int
    """Bytes of the store's file system that are free; 0 if the store is not on a disk."""
    disk_size: int
    topics: int
    groups: int
    sent: int
    """Messages that were ever stored in the queues of users' topics."""
    pending: int
    oldest_pending_ms: int
    """Age of the oldest pending transaction; 0 if none is pending."""
    pending_late_ms: int
    """The age from which a transaction waits longer than its checks should take: its first three did not end it."""
    pending_examined: int
    """How many of the oldest pending transactions `pending_groups` counts."""
    pending_groups: tuple[PendingGroup, ...]
    """Those of the oldest pending transactions, oldest first."""
    discarded: int
    """Discarded transactions that are left in the log, also those that were resumed since."""
    lag: int
    lags: tuple[GroupLag, ...]
    """The groups with the most messages that are not acknowledged."""
    dead_letters: int
    dead: tuple[GroupLag, ...]
    """The groups with the most dead letters."""
    delayed: int
    """Messages that wait for their time."""
    retries: int = 0
    """How many of those that are due next, up to 32 of a delay level, failed in a consumer that gets them again."""
    crashed: bool = False
    """Whether this process found the store not closed cleanly when it opened it."""
    cut_bytes: int = 0
    """Bytes of a write that a crash had interrupted, which opening cut off."""
    healed: int = 0
    """Ends of transactions that a crash had interrupted, which opening completed."""
    connections: int | None = None
    """Of clients; None without a server. So are the next two."""
    producers: int | None = None
    consumers: int | None = None
    replica_of: str | None = None
    replicas: tuple[ReplicaRow, ...] = ()
    replicas_required: int = 1


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in a list."""

    topic: str
    queues: int
    messages: int
    """Left in its queues."""
    newest: datetime | None
    """When its last message was stored."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group in a list."""

    group: str
    topics: int
    """In how many topics it has an offset."""
    lag: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A connected consumer of a group."""

    client_id: str
    address: str
    language: str
    silent_ms: int
    """Since its last heartbeat."""
    topics: tuple[str, ...]
    """What it subscribes to, sorted. Empty for a client of the gRPC protocol, which names a topic in each request."""
    protocol: str = "remoting"
    """remoting or grpc."""


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """A database with messages that wait for a log."""

    name: str
    """The database, without a password."""
    waiting: int | None
    """None if the database cannot be read."""
    oldest_ms: int | None
    error: str | None
    has_rows: bool
    """Whether its rows can be shown."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """What takes a walk over all queues and groups."""

    taken: datetime
    sent: int
    topics: int
    lag_of: Mapping[str, tuple[int, int]]
    """Group → topics in which it has offsets, and lag."""
    dead: Mapping[str, int]
    delayed: int
    retries: int
    discarded: int


class Operations(Lists):
    """Calls of operators on an open store, in addition to the broker's own. Thread-safe."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(broker, time_ms)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sums: _Sums | None = None
        self._sums_at = 0.0

    def overview(self) -> Overview:
        """Returns the store at this moment; its sums over queues and groups may be two seconds old."""
        broker, sums = self._broker, self._recent_sums()
        stat, report = broker.stat(), broker.open_report
        disk_free, disk_size = _disk(broker.path)
        oldest_ms, examined, groups = self._oldest()
        return Overview(
            path=str(broker.path),
            taken=sums.taken,
            read_only=broker.read_only,
            failure=self._failure(),
            warnings=tuple(report.warnings),
            log_first=stat.min_physical_offset,
            log_end=stat.max_physical_offset,
            log_durable=stat.durable_physical_offset,
            disk_free=disk_free,
            disk_size=disk_size,
            topics=sums.topics,
            groups=len(sums.lag_of),
            sent=sums.sent,
            pending=stat.pending_transactions,
            oldest_pending_ms=oldest_ms,
            pending_late_ms=_late_ms(broker.config),
            pending_examined=examined,
            pending_groups=groups,
            discarded=sums.discarded,
            lag=sum(lag for _, lag in sums.lag_of.values()),
            lags=_largest({group: lag for group, (_, lag) in sums.lag_of.items() if lag}),
            dead_letters=sum(sums.dead.values()),
            dead=_largest(sums.dead),
            delayed=sums.delayed,
            retries=sums.retries,
            crashed=not (report.clean or broker.read_only),
            cut_bytes=report.truncated_bytes,
            healed=report.healed_ops,
        )

    def ask(self, transaction_id: str) -> bool:
        """Has a pending transaction checked soon, although it is not due. Returns whether its group has a producer.

        Without one, nothing is done. The check counts as any other.
        Raises TransactionNotFoundError, AlreadyEndedError, ReadOnlyError.
        """
        broker = self._broker
        if broker.read_only:
            raise ReadOnlyError("a check needs the process that writes the store")
        row = broker.store.transaction(transaction_id)
        if row.state is not TransactionState.PENDING:
            raise AlreadyEndedError(f"transaction {transaction_id} is {row.state}", outcome=row.state.value)
        has_producer = bool(broker._producers.of_group(row.producer_group or ""))
        if has_producer:  # Otherwise one that registers meanwhile would be asked, although the answer says nobody is.
            broker._check_soon(row.halves[-1][0])
        return has_producer

    def outbox_facts(self) -> list[OutboxFacts]:
        """Returns the databases for which this process forwards messages."""
        return [_outbox(forwarder) for forwarder in self._broker.outboxes.forwarders()]

    def settings(self) -> dict[str, dict[str, str]]:
        """Returns names and values, as text: settings of the store, facts of its files, what opening it found."""
        broker = self._broker
        config = {field.name: _text(getattr(broker.config, field.name)) for field in dataclasses.fields(broker.config)}
        stat = broker.stat()
        facts = {name: f"{getattr(stat, name):,}" for name in _STATISTICS}
        report = {name: _text(getattr(broker.open_report, name)) for name in _OPENING}
        return {"store": config, "files": facts, "opening": report}

    def _oldest(self) -> tuple[int, int, tuple[PendingGroup, ...]]:
        """Returns the age of the oldest pending transaction, and the groups and topics of the oldest ones."""
        store, rows = self._broker.store, dict[tuple[str, str], tuple[int, int]]()
        waiting = store.halves_waiting(-1, _OLDEST_MAX)
        for one in waiting:
            try:
                key = one.producer_group, store.half(one.half_queue_offset).real_topic
            except (TransactionNotFoundError, MessageNotFoundError, OffsetTooOldError):
                continue  # It has ended meanwhile.
            count, oldest_ms = rows.get(key, (0, 0))
            rows[key] = count + 1, max(oldest_ms, one.stored_age_ms)
        largest = nlargest(_TOP, rows.items(), key=lambda row: row[1][1])
        oldest_ms = max((one.stored_age_ms for one in waiting), default=0)
        return oldest_ms, len(waiting), tuple(PendingGroup(*key, *numbers) for key, numbers in largest)

    def topic_rows(self, topics: Sequence[str]) -> list[TopicRow]:
        """Returns a row for each topic."""
        return [self._topic_row(topic) for topic in topics]

    def group_rows(self, groups: Sequence[str]) -> list[GroupRow]:
        """Returns a row for each group; the lag may be two seconds old. Groups that are gone have empty rows."""
        sums = self._recent_sums()
        return [
            GroupRow(group, *sums.lag_of.get(group, (0, 0)), self._messages(dead_letter_topic(group)))
            for group in groups
        ]

    def _topic_row(self, topic: str) -> TopicRow:
        store = self._broker.store
        queues = self._broker.read_queues(topic)
        messages, newest = 0, None
        for queue_id in queues:
            first, end = store.queue_range(topic, queue_id)
            messages += end - first
            if end > first:
                last, _ = store.read(topic, queue_id, end - 1, 1)
                stored = last[0].store_timestamp if last else None
                newest = stored if newest is None or (stored is not None and stored > newest) else newest
        return TopicRow(topic, len(queues), messages, newest)

    def _messages(self, topic: str) -> int:
        ranges = (self._broker.store.queue_range(topic, queue_id) for queue_id in self._broker.read_queues(topic))
        return sum(end - first for first, end in ranges)

    def _failure(self) -> str | None:
        if self._broker.read_only:
            return None
        try:
            self._broker.store.check_room()
        except TxStoreError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _recent_sums(self) -> _Sums:
        with self._lock:
            now = self._monotonic()
            if self._sums is None or now - self._sums_at > _KEPT_SECONDS:
                self._sums = self._sum()
                self._sums_at = self._monotonic()  # After the walk, which may take long.
            return self._sums

    def _sum(self) -> _Sums:
        broker, now_ms = self._broker, self._time_ms()
        sent = discarded = 0
        delayed = broker.store.timed_messages()
        dead: dict[str, int] = {}
        for topic, queue_id, first, end in broker.store.queues():
            if topic.startswith(DEAD_LETTER_PREFIX):
                if end > first:
                    group = topic.removeprefix(DEAD_LETTER_PREFIX)
                    dead[group] = dead.get(group, 0) + end - first
            elif topic == SCHEDULE_TOPIC and queue_id < len(LEVEL_SECONDS):
                # A level's messages are due in the order in which they were stored.
                due = broker.store.search_offset(topic, queue_id, now_ms - 1000 * LEVEL_SECONDS[queue_id])
                delayed += end - max(first, due)
            elif topic == DISCARD_TOPIC:
                discarded += end - first
            elif not is_system_topic(topic):
                sent += end
        lag_of = {
            group: (len({row.topic for row in rows if not is_system_topic(row.topic)}), sum(row.lag for row in rows))
            for group, rows in broker.lag_by_group().items()
        }
        retries = self._retries() if delayed else 0
        taken = datetime.fromtimestamp(now_ms / 1000, UTC)
        return _Sums(taken, sent, len(broker.topics()), lag_of, dead, delayed, retries, discarded)

    def _retries(self) -> int:
        following = (row for level in self.delayed_levels(_DUE_NEXT) for row in level.next)
        return sum(row.topic.startswith(RETRY_PREFIX) for row in following)


def _outbox(forwarder: RowForwarder) -> OutboxFacts:
    try:
        status = forwarder.status()
    except Exception as error:  # The driver's own, of any class.
        return OutboxFacts(forwarder.name, None, None, error_text(error), has_rows=False)
    return OutboxFacts(forwarder.name, status.rows, int(status.oldest_seconds * 1000), None, has_rows=False)


def _disk(path: str) -> tuple[int, int]:
    """Returns the free bytes of a file system, and its size; zeros for a store that is not on a disk."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return 0, 0
    return usage.free, usage.total


def _late_ms(config: BrokerConfig) -> int:
    return milliseconds(config.transaction_timeout) + 3 * milliseconds(config.transaction_check_interval)


def _largest(counts: Mapping[str, int]) -> tuple[GroupLag, ...]:
    return tuple(GroupLag(group, count) for group, count in nlargest(_TOP, counts.items(), key=lambda one: one[1]))


def _text(value: object) -> str:
    """Returns a setting as text: a time span in seconds."""
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)
