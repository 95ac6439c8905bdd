"""Transactions: lists, explains, ends, discards and resumes them.

In:     a transaction's id, or what `prepare` returned.
Out:    an end, or a description that explains itself.
Always: facts come from the log, except checks, which come from memory. Ending twice the same way succeeds.
Not here: the rule by which the log decides (the engine's `half/outcome`), when a check is due (`decision`).
"""

import enum
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from txstore._native import EndResult, SendResult, Store, StoredMessage, TransactionRow, WaitingHalf
from txstore.errors import InvalidOptionError, MessageNotFoundError, OffsetTooOldError, TransactionNotFoundError
from txstore.message import (
    Half,
    HalfMessage,
    LocalTransactionState,
    SentMessage,
    TransactionState,
    check_times,
    transaction_id_of,
    utc,
)

__all__ = [
    "CheckHistory",
    "CheckRecord",
    "EventKind",
    "Outlook",
    "PendingTransaction",
    "TraceEvent",
    "TransactionTrace",
    "Transactions",
    "trace",
]

# Looking up a member in its enum class takes longer than the rest of `end`.
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_PAGE, _PAGE_MAX = 1000, 100_000
_NEXT: dict[TransactionState, str] = {
    TransactionState.COMMITTED: "It is final: consumers see the message.",
    TransactionState.ROLLED_BACK: "It is final: no consumer sees the message.",
    TransactionState.DISCARDED: "It is parked in TRANS_CHECK_MAX_TIME_TOPIC; broker.resume(id) makes it pending again.",
    TransactionState.FINISHED_UNKNOWN: "It is final: a broker ended it and left no trace of how.",
}
_CAUSE: dict[TransactionState, str] = {
    TransactionState.PENDING: "neither a final message, nor a discarded copy, nor an op message names its half",
    TransactionState.COMMITTED: "a committed message in its topic names its half",
    TransactionState.ROLLED_BACK: "an op message names its half, and there is no message in its topic",
    TransactionState.DISCARDED: "TRANS_CHECK_MAX_TIME_TOPIC has a copy of it",
    TransactionState.FINISHED_UNKNOWN: "its half lies below the progress that a broker stored, and nothing names it",
}


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """One pending transaction, as `broker.transactions()` lists it."""

    transaction_id: str | None
    producer_group: str
    topic: str
    """The real topic."""
    half_queue_offset: int
    prepared_transaction_offset: int
    """The half's physical offset, in bytes of the log."""
    age: timedelta
    """Since it was stored, or since its local transaction ended in this process."""
    stored_age: timedelta
    checks: int
    """Checks that were sent."""
    last_check: timedelta | None
    """How long ago the last check was sent; None if there was none since the store was opened."""
    owner: str | None
    """The producer that began it, if it lives in this process."""
    running: bool
    """Whether its local transaction still runs in this process."""
    next_check: timedelta | None
    """Time until it is looked at next; zero if it is due; None if the store is open read-only."""
    why: str
    """What it waits for."""


class EventKind(enum.StrEnum):
    """What happened to a transaction."""

    PREPARED = "prepared"
    PUT_BACK = "put back"
    """A broker stored its half again, as it does for each check."""
    CHECKED = "checked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "discarded"
    OP = "op"
    """An op message names one of its halves: a trace of the decision, for brokers."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of a transaction; `time` is None if retention removed the record that has it."""

    time: datetime | None
    kind: EventKind
    text: str
    physical_offset: int | None = None
    queue_offset: int | None = None

    def __str__(self) -> str:
        time = self.time.isoformat(timespec="milliseconds") if self.time is not None else "(removed by retention)"
        return f"{time}  {self.text}"


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """The history of one transaction; `explain()` tells it in words."""

    transaction_id: str | None
    producer_group: str | None
    topic: str
    """The real topic."""
    state: TransactionState
    prepared_time: datetime
    ended_time: datetime | None
    halves: tuple[tuple[int, int], ...]
    """(half queue offset, physical offset) of each copy, oldest first."""
    finals: tuple[int, ...]
    """Physical offsets of its messages in the real topic."""
    discards: tuple[int, ...]
    ops: tuple[int, ...]
    events: tuple[TraceEvent, ...]
    """Oldest first. Checks come from memory, so only those since the store was opened are included."""
    pending: PendingTransaction | None
    """What it waits for, while it is pending."""

    def explain(self) -> str:
        """Returns the state, its reason, the next step and the history as text."""
        lines = [
            f"transaction {self.transaction_id} of group {self.producer_group} for topic {self.topic}: {self.state}",
            f"why: {_CAUSE[self.state]}",
            f"next: {self._next()}",
        ]
        if len(self.finals) > 1:
            lines.append(f"note: a broker committed it {len(self.finals)} times")
        return "\n".join([*lines, "history:", *(f"  {event}" for event in self.events)])

    def _next(self) -> str:
        if self.state is not TransactionState.PENDING:
            return _NEXT[self.state]
        if self.pending is None or self.pending.next_check is None:
            return "the process that writes the store will check it"
        if not self.pending.next_check:
            return f"it is due: {self.pending.why}"
        return f"next look in {self.pending.next_check}: {self.pending.why}"


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """One check that was sent: when, to which producer, and its result."""

    time: datetime
    """When it was sent, in UTC."""
    producer: str
    answer: LocalTransactionState
    reason: str | None
    """Why it counts as UNKNOWN, or why the end after it failed; None if neither."""


class CheckHistory:
    """Keeps the checks of transactions in memory: the latest `checks_max` of the latest `transactions_max`."""

    def __init__(self, transactions_max: int = 10_000, checks_max: int = 32) -> None:
        self._lock = threading.RLock()
        self._records: OrderedDict[int, deque[CheckRecord]] = OrderedDict()
        self._transactions_max = transactions_max
        self._checks_max = checks_max

    def add(self, half_queue_offset: int, record: CheckRecord) -> None:
        with self._lock:
            records = self._records.setdefault(half_queue_offset, deque(maxlen=self._checks_max))
            records.append(record)
            self._records.move_to_end(half_queue_offset)
            while len(self._records) > self._transactions_max:
                self._records.popitem(last=False)

    def of(self, half_queue_offsets: Iterable[int]) -> list[CheckRecord]:
        """Returns the checks of a transaction, given by the offsets of its copies, oldest first."""
        with self._lock:
            return [record for offset in half_queue_offsets for record in self._records.get(offset, ())]


class Outlook(NamedTuple):
    """What comes next for a pending transaction: after how many ms at most (0: it is due), and why."""

    in_ms: int
    why: str


class Transactions:
    """The transactions of one open store. Thread-safe.

    `outlook` returns the next step of a pending transaction; it is None for a read-only store, which checks nothing.
    `owner_name` returns the name of a live producer, given its id.
    """

    def __init__(
        self,
        store: Store,
        history: CheckHistory,
        outlook: Callable[[WaitingHalf], Outlook] | None,
        owner_name: Callable[[int], str | None],
    ) -> None:
        self._store = store
        self._history = history
        self._outlook = outlook
        self._owner_name = owner_name

    def end(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndResult:
        """Commits or rolls back a transaction, given by its id or by what `prepare` returned.

        If it has already ended the same way, nothing is written and the result has `already` set. Without
        `producer_group` it is an end by hand, which is durable when this returns.

        Raises InvalidOptionError (neither COMMIT nor ROLLBACK), TransactionNotFoundError, AlreadyEndedError,
        WrongGroupError.
        """
        if state is not _COMMIT and state is not _ROLLBACK:
            raise InvalidOptionError(
                f"state must be LocalTransactionState.COMMIT or ROLLBACK, got {state}", option="state"
            )
        if not isinstance(transaction, str):
            return self.end_half(transaction, state, producer_group)
        half_queue_offset, physical_offset = self._newest(transaction)
        return self._store.end_transaction(
            half_queue_offset,
            physical_offset,
            commit=state is _COMMIT,
            transaction_id=transaction,
            producer_group=producer_group,
            by_hand=producer_group is None,
        )

    def end_half(self, half: Half, state: LocalTransactionState, producer_group: str | None, /) -> EndResult:
        """Commits or rolls back (COMMIT, ROLLBACK) the transaction of a half message. Raises as `end` does."""
        commit, by_hand = state is _COMMIT, producer_group is None
        try:
            # Both offsets identify the half exactly; its id would only be compared.
            return self._store.end_transaction(
                half.queue_offset, half.physical_offset, commit=commit, producer_group=producer_group, by_hand=by_hand
            )
        except TransactionNotFoundError:
            # If retention removed the half, the records that remain are found by its id alone.
            return self._store.end_transaction(
                half.queue_offset,
                half.physical_offset,
                commit=commit,
                transaction_id=transaction_id_of(half),
                producer_group=producer_group,
                by_hand=by_hand,
            )

    def discard(self, transaction: str | SentMessage) -> EndResult:
        """Moves a pending transaction to TRANS_CHECK_MAX_TIME_TOPIC. Raises as `end` does."""
        if isinstance(transaction, str):
            return self._store.discard(*self._newest(transaction))
        return self._store.discard(transaction.queue_offset, transaction.physical_offset)

    def resume(self, transaction_id: str) -> SendResult:
        """Makes a discarded transaction pending again, as a new transaction with the same id.

        Raises TransactionNotFoundError, AlreadyEndedError.
        """
        return self._store.resume(transaction_id)

    def waiting(self) -> Iterator[WaitingHalf]:
        """Yields pending transactions, oldest first. Those that begin or end meanwhile may be included or not."""
        after, size = -1, _PAGE
        while page := self._store.halves_waiting(after, size):
            yield from page
            after = page[-1].half_queue_offset
            # Each page walks all pending transactions, so a few large pages cost less than many small ones.
            size = min(size * 8, _PAGE_MAX)

    def pending(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        older_than: timedelta | None = None,
        limit: int | None = None,
    ) -> list[PendingTransaction]:
        """Returns pending transactions, oldest first, at most `limit`."""
        found: list[PendingTransaction] = []
        for waiting in self.waiting():
            if limit is not None and len(found) >= limit:
                break
            if group is not None and waiting.producer_group != group:
                continue
            if older_than is not None and waiting.stored_age_ms < older_than / timedelta(milliseconds=1):
                continue
            try:
                stored = self._store.half(waiting.half_queue_offset)
            except (TransactionNotFoundError, MessageNotFoundError, OffsetTooOldError):
                continue  # It ended in the meantime, and retention removed it.
            if topic is None or stored.real_topic == topic:
                found.append(self._describe(waiting, stored))
        return found

    def is_pending(self, topic: str) -> bool:
        """Tells whether a transaction of a topic is pending."""
        return bool(self.pending(topic=topic, limit=1))

    def finished(
        self,
        state: TransactionState | None,
        *,
        group: str | None = None,
        topic: str | None = None,
        limit: int | None = None,
    ) -> list[TransactionRow]:
        """Returns the log's transactions by state (None: all), in order. Reads the whole log."""
        rows = [
            row
            for row in self._store.transactions()
            if (state is None or row.state == state)
            and (group is None or row.producer_group == group)
            and (topic is None or row.topic == topic)
        ]
        return rows if limit is None else rows[:limit]

    def trace(self, transaction_id: str) -> TransactionTrace:
        """Returns the history of the newest transaction with that id. Raises TransactionNotFoundError."""
        row = self._store.transaction(transaction_id)
        pending: PendingTransaction | None = None
        if row.state == TransactionState.PENDING:
            newest = row.halves[-1][0]
            for waiting in self._store.halves_waiting(newest - 1, 1):
                if waiting.half_queue_offset == newest:
                    pending = self._describe(waiting, self._store.half(newest))
        return _fold(self._store, row, self._history.of(offset for offset, _ in row.halves), pending)

    def _newest(self, transaction_id: str) -> tuple[int, int]:
        """Returns (half queue offset, physical offset) of the newest copy."""
        halves = self._store.transaction(transaction_id).halves
        if not halves:
            raise TransactionNotFoundError(f"transaction {transaction_id}: retention removed its half message")
        return halves[-1]

    def _describe(self, waiting: WaitingHalf, stored: StoredMessage) -> PendingTransaction:
        owner = self._owner_name(waiting.owner)
        next_check, why = self._next_check(waiting, owner)
        last = waiting.last_check_age_ms
        return PendingTransaction(
            transaction_id=HalfMessage(stored).transaction_id,
            producer_group=waiting.producer_group,
            topic=stored.real_topic,
            half_queue_offset=waiting.half_queue_offset,
            prepared_transaction_offset=waiting.prepared_transaction_offset,
            age=timedelta(milliseconds=waiting.age_ms),
            stored_age=timedelta(milliseconds=waiting.stored_age_ms),
            checks=waiting.checks,
            last_check=None if last is None else timedelta(milliseconds=last),
            owner=owner,
            running=waiting.running,
            next_check=next_check,
            why=why,
        )

    def _next_check(self, waiting: WaitingHalf, owner: str | None) -> tuple[timedelta | None, str]:
        if self._outlook is None:
            return None, "the process that writes the store checks it"
        if waiting.running:
            return timedelta(milliseconds=max(0, waiting.look_again_in_ms)), (
                f"its local transaction still runs in {owner or 'a producer that has left'}"
            )
        outlook = self._outlook(waiting)
        left_ms = max(0, waiting.look_again_in_ms)
        if 0 < outlook.in_ms < left_ms:
            left_ms = outlook.in_ms
        return timedelta(milliseconds=left_ms), outlook.why


def trace(store: Store, transaction_id: str) -> TransactionTrace:
    """Returns the history of a transaction from a store alone, without checks and without the next step.

    Raises TransactionNotFoundError.
    """
    return _fold(store, store.transaction(transaction_id), [], None)


def _fold(
    store: Store, row: TransactionRow, checks: list[CheckRecord], pending: PendingTransaction | None
) -> TransactionTrace:
    state = TransactionState(row.state)
    events = list(_events(store, row, state))
    events.extend(_checked(record) for record in checks)
    events.sort(key=_when)
    return TransactionTrace(
        transaction_id=row.transaction_id,
        producer_group=row.producer_group,
        topic=row.topic,
        state=state,
        prepared_time=utc(row.prepared_timestamp_ms),
        ended_time=None if row.ended_timestamp_ms is None else utc(row.ended_timestamp_ms),
        halves=tuple(row.halves),
        finals=tuple(row.finals),
        discards=tuple(row.discards),
        ops=tuple(row.ops),
        events=tuple(events),
        pending=pending,
    )


def _when(event: TraceEvent) -> tuple[float, int]:
    """Sorts by time; within one millisecond a half comes before its check, and the check before its end."""
    rank = 0 if event.kind in (EventKind.PREPARED, EventKind.PUT_BACK) else 1 if event.kind is EventKind.CHECKED else 2
    return (0.0 if event.time is None else event.time.timestamp()), rank


def _events(store: Store, row: TransactionRow, state: TransactionState) -> Iterator[TraceEvent]:
    """Yields the events that the log has: the halves, then the end, then the op messages that repeat it."""
    for number, (queue_offset, physical_offset) in enumerate(row.halves):
        record = _record(store, physical_offset)
        times = 0 if record is None else check_times(record.properties)
        kind, text = (
            EventKind.PREPARED,
            "half message stored" if number == 0 else "half message stored again, by a resend",
        )
        if times:
            kind, text = EventKind.PUT_BACK, f"half message put back by a broker for check {times}"
        yield _event(record, kind, f"{text} (half queue offset {queue_offset})", physical_offset, queue_offset)
    for physical_offset in row.finals:
        record = _record(store, physical_offset)
        yield _event(record, EventKind.COMMITTED, f"committed to {row.topic}", physical_offset)
    for physical_offset in row.discards:
        record = _record(store, physical_offset)
        yield _event(record, EventKind.DISCARDED, "discarded to TRANS_CHECK_MAX_TIME_TOPIC", physical_offset)
    decided_by_op = state is TransactionState.ROLLED_BACK
    for number, physical_offset in enumerate(row.ops):
        record = _record(store, physical_offset)
        if decided_by_op and number == 0:
            yield _event(record, EventKind.ROLLED_BACK, "rolled back, by the op message", physical_offset)
        else:
            yield _event(record, EventKind.OP, "op message names it, for brokers", physical_offset)


def _event(
    record: StoredMessage | None, kind: EventKind, text: str, physical_offset: int, queue_offset: int | None = None
) -> TraceEvent:
    if record is None:
        return TraceEvent(None, kind, text, physical_offset, queue_offset)
    offset = record.queue_offset if queue_offset is None else queue_offset
    return TraceEvent(utc(record.store_timestamp_ms), kind, text, physical_offset, offset)


def _checked(record: CheckRecord) -> TraceEvent:
    reason = "" if record.reason is None else f" ({record.reason})"
    return TraceEvent(record.time, EventKind.CHECKED, f"{record.producer} was asked: {record.answer.name}{reason}")


def _record(store: Store, physical_offset: int) -> StoredMessage | None:
    try:
        return store.read_at(physical_offset)
    except (MessageNotFoundError, OffsetTooOldError):
        return None
