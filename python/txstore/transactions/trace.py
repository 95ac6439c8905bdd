"""The trace of a transaction: its state, why it is so, what comes next, and its history.

In:     a transaction's records in the log, its checks, what it waits for.
Out:    a `TransactionTrace`, which explains itself in words.
Always: facts come from the log, except checks, which come from memory.
Not here: the rule by which the log decides (the engine's `transaction/outcome`).
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from txstore._native import TIMED_TOPIC, Store, StoredMessage, TransactionRow
from txstore.errors import MessageNotFoundError, OffsetTooOldError
from txstore.message import TransactionState, check_times, utc
from txstore.transactions.escaped import EscapedTransaction, EscapeState
from txstore.transactions.history import CheckRecord
from txstore.transactions.pending import PendingTransaction

__all__ = ["EventKind", "TraceEvent", "TransactionTrace", "trace"]

_DUE = "TIMER_OUT_MS"
_NEXT: dict[TransactionState, str] = {
    TransactionState.COMMITTED: "It is final: consumers see the message.",
    TransactionState.ROLLED_BACK: "It is final: no consumer sees the message.",
    TransactionState.DISCARDED: (
        "It is parked in TRANS_CHECK_MAX_TIME_TOPIC; broker.resume(id) or `txstore tx resume` makes it pending again."
    ),
    TransactionState.FINISHED_UNKNOWN: "It is final: a broker ended it and left no trace of how.",
}
_CAUSE: dict[TransactionState, str] = {
    TransactionState.PENDING: "neither a final message, nor a discarded copy, nor an op message names its half",
    TransactionState.COMMITTED: "a committed message in its topic names its half",
    TransactionState.ROLLED_BACK: "an op message names its half, and there is no message in its topic",
    TransactionState.DISCARDED: "TRANS_CHECK_MAX_TIME_TOPIC has a copy of it",
    TransactionState.FINISHED_UNKNOWN: "its half lies below the progress that a broker stored, and nothing names it",
}


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
    topic: str | None = None
    """The topic of the event's record, and its queue; None for a check, and if retention removed the record."""
    queue_id: int | None = None

    def __str__(self) -> str:
        time = self.time.isoformat(timespec="milliseconds") if self.time is not None else "(removed by retention)"
        where = "" if self.topic is None else f", {self.topic}/{self.queue_id}@{self.queue_offset}"
        at = "" if self.physical_offset is None else f", at {self.physical_offset}"
        return f"{time}  {self.text}{where}{at}"


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """The history of one transaction; `explain()` tells it in words."""

    transaction_id: str | None
    producer_group: str | None
    topic: str
    """The real topic."""
    state: TransactionState
    prepared_timestamp: datetime
    """When its first half was stored, in UTC."""
    ended_timestamp: datetime | None
    """When the record that decided it was stored, in UTC; None without one."""
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
    checks: int
    """TRANSACTION_CHECK_TIMES of its newest copy, as counted by a RocketMQ broker."""
    keys: tuple[str, ...]
    """The message's keys; empty without any, and if retention removed its half."""
    tags: str | None
    body_bytes: int | None
    """The size of the message's body; None if retention removed its half."""
    escaped: EscapedTransaction | None = None
    """How it escaped from a replica to another broker; None if it did not."""
    deliver_at: datetime | None = None
    """When consumers see the committed message, unless it is recalled before; None for at once."""

    def explain(self) -> str:
        """Returns the state, its reason, the next step and the history as text."""
        lines = [
            f"transaction {self.transaction_id} of group {self.producer_group} for topic {self.topic}: {self.state}",
            f"why: {self.why}",
            f"next: {self.next_step}",
        ]
        if self.pending is not None:
            lines.append(f"waiting: stored {self.pending.stored_age} ago, {self.pending.checks} checks sent")
        if self.escaped is not None:
            lines.append(f"escaped: {self.escaped}")
        return "\n".join([*lines, "history:", *(f"  {event}" for event in self.events)])

    @property
    def _elsewhere(self) -> str | None:
        """The name of the broker that has it now."""
        escaped = self.escaped
        return escaped.broker_name if escaped is not None and escaped.state is EscapeState.SENT else None

    @property
    def why(self) -> str:
        """Which records put it in its state."""
        cause = _CAUSE[self.state]
        if self.state is TransactionState.ROLLED_BACK and (name := self._elsewhere):
            cause += f"; it has escaped to broker {name}, which decides"
        if self.deliver_at is not None:
            cause = f"a committed message in {TIMED_TOPIC}, where it waits for its time, names its half"
        if len(self.finals) > 1:
            cause += f"; committed {len(self.finals)} times: a broker accepted both a late end and a check's answer"
        return cause

    @property
    def next_step(self) -> str:
        """What will happen to it, or what can be done."""
        if self.state is TransactionState.ROLLED_BACK and (name := self._elsewhere):
            return f"consumers see the message at broker {name} if it is committed there"
        if self.deliver_at is not None:
            due = self.deliver_at.isoformat(timespec="milliseconds")
            return f"It is final: consumers see the message from {due} on, unless it is recalled before."
        if self.state is not TransactionState.PENDING:
            return _NEXT[self.state]
        if self.pending is None or self.pending.next_check is None:
            return "the process that writes the store will check it; `txstore tx commit` or `rollback` ends it by hand"
        if not self.pending.next_check:
            return f"it is due: {self.pending.why}"
        return f"next look in {self.pending.next_check}: {self.pending.why}"


def trace(
    store: Store, row: TransactionRow, checks: list[CheckRecord], pending: PendingTransaction | None
) -> TransactionTrace:
    """Returns the trace of a transaction. `pending` is what it waits for, if it is pending."""
    events = list(_events(store, row))
    events.extend(_checked(record) for record in checks)
    events.sort(key=_when)
    half = _record(store, row.halves[-1][1]) if row.halves else None
    return TransactionTrace(
        transaction_id=row.transaction_id,
        producer_group=row.producer_group,
        topic=row.topic,
        state=row.state,
        prepared_timestamp=row.prepared_timestamp,
        ended_timestamp=row.ended_timestamp,
        halves=tuple(row.halves),
        finals=tuple(row.finals),
        discards=tuple(row.discards),
        ops=tuple(row.ops),
        events=tuple(events),
        pending=pending,
        checks=row.checks,
        keys=() if half is None else half.keys,
        tags=None if half is None else half.tags,
        body_bytes=None if half is None else len(half.body),
        deliver_at=next(filter(None, (_deliver_at(_record(store, final)) for final in row.finals)), None),
    )


def _when(event: TraceEvent) -> tuple[float, int]:
    """Sorts by time; within one millisecond a half comes before its check, and the check before its end."""
    rank = 0 if event.kind in (EventKind.PREPARED, EventKind.PUT_BACK) else 1 if event.kind is EventKind.CHECKED else 2
    return (0.0 if event.time is None else event.time.timestamp()), rank


def _events(store: Store, row: TransactionRow) -> Iterator[TraceEvent]:
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
        due = _deliver_at(record)
        later = "" if due is None else f", for {due.isoformat(timespec='milliseconds')}"
        yield _event(record, EventKind.COMMITTED, f"committed to {row.topic}{later}", physical_offset)
    for physical_offset in row.discards:
        record = _record(store, physical_offset)
        yield _event(record, EventKind.DISCARDED, "discarded to TRANS_CHECK_MAX_TIME_TOPIC", physical_offset)
    decided_by_op = row.state is TransactionState.ROLLED_BACK
    for number, physical_offset in enumerate(dict.fromkeys(row.ops)):
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
    return TraceEvent(record.store_timestamp, kind, text, physical_offset, offset, record.topic, record.queue_id)


def _deliver_at(final: StoredMessage | None) -> datetime | None:
    """Returns the time for which a final message waits, or waited."""
    if final is None or final.topic != TIMED_TOPIC:
        return None
    due_ms = final.properties.get(_DUE, "")
    return utc(int(due_ms)) if due_ms.isascii() and due_ms.isdigit() else None


def _checked(record: CheckRecord) -> TraceEvent:
    reason = "" if record.reason is None else f" ({record.reason})"
    return TraceEvent(record.time, EventKind.CHECKED, f"{record.producer} was asked: {record.answer.name}{reason}")


def _record(store: Store, physical_offset: int) -> StoredMessage | None:
    try:
        return store.read_at(physical_offset)
    except (MessageNotFoundError, OffsetTooOldError):
        return None
