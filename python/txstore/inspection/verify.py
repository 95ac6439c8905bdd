"""Verifies a store: each record, queues against the log, transactions against both.

In:     an open store.
Out:    counts, and findings of three kinds: damages (invalid bytes), differences (files that contradict each other),
        notes (what a broker does, and nobody needs to repair).
Always: writes nothing. The first damage in the log does not hide the findings in the queues.
Not here: repairing.
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from txstore import errors
from txstore._native import HALF_TOPIC, TRANSACTION_GROUP, Store, StoredMessage, TransactionRow
from txstore.inspection.progress import Progress, unwatched
from txstore.inspection.records import scan
from txstore.message import TransactionState

__all__ = ["Findings", "verify"]

_REPAIR_TOPICS = ("TXSTORE_REPAIR", "~")  # The topics of filler records, which a repair writes over damaged ones.
_LOST = -1
_READ_BATCH = 500
_FINDINGS_MAX = 1000  # More of one kind add nothing, and a wrecked store has millions.
Queue = tuple[str, int]


@dataclass
class Findings:
    """What was counted and found."""

    counts: Counter[str] = field(default_factory=Counter)
    damages: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    log_was_read: bool = True
    """Whether the log was read to its end. If damage stopped it, queues cannot be compared with the rest."""
    stopped_at: tuple[str, int] | None = None
    """The file and byte of the damage that stopped the reading."""

    def as_facts(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "damages": self.damages,
            "differences": self.differences,
            "notes": self.notes,
        }

    def differs(self, text: str) -> None:
        if len(self.differences) < _FINDINGS_MAX:
            self.differences.append(text)


def verify(store: Store, progress: Progress = unwatched) -> Findings:
    """Reads everything."""
    found = Findings()
    expected = _verify_records(store, found, progress)
    _verify_queues(store, expected, found, progress)
    if not found.damages:
        # Transactions come from the whole log; in a damaged one they would be guesses.
        _verify_transactions(store, found, progress)
    return found


def _verify_records(store: Store, found: Findings, progress: Progress) -> dict[Queue, tuple[int, array[int]]]:
    """Verifies each record; returns what each queue should hold: first queue offset, physical offsets in order."""
    expected: dict[Queue, tuple[int, array[int]]] = {}
    stat = store.stat()
    try:
        with progress("reading the log", stat.max_physical_offset - stat.min_physical_offset) as steps:
            for batch, following in scan(store):
                for message in batch:
                    found.counts["records"] += 1
                    found.counts["filler_records"] += message.topic in _REPAIR_TOPICS
                    _verify_body(message, found)
                    if message.sys_flag & 0xC in (0, 0x8):
                        _expect(message, expected, found)
                steps.to(following - stat.min_physical_offset)
    except (errors.StoreCorruptError, errors.MissingFileError) as error:
        found.damages.append(_first_line(error))
        found.log_was_read = False
        if isinstance(error, errors.StoreCorruptError):
            found.stopped_at = (str(error.file), error.offset)
    return expected


def _verify_body(message: StoredMessage, found: Findings) -> None:
    stored = message.stored_body
    if stored and zlib.crc32(stored) & 0x7FFFFFFF != message.body_crc:
        found.damages.append(f"record at {message.physical_offset}: the body does not match the record's CRC")
        return
    try:
        found.counts["body_bytes"] += len(message.body)
    except errors.StoreCorruptError as error:
        found.damages.append(f"record at {message.physical_offset}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    """Returns what and where, without the hint, which would point to this command."""
    return str(error).partition("\n")[0]


def _expect(message: StoredMessage, expected: dict[Queue, tuple[int, array[int]]], found: Findings) -> None:
    queue = (message.topic, message.queue_id)
    first, offsets = expected.setdefault(queue, (message.queue_offset, array("q")))
    following = first + len(offsets)
    if message.queue_offset > following and found.counts["filler_records"]:
        # A filler record does not tell whose record it replaced, so the gap's entries belong to no message.
        found.counts["lost_messages"] += message.queue_offset - following
        offsets.extend([_LOST] * (message.queue_offset - following))
    elif message.queue_offset != following:
        where = f"{message.topic}/{message.queue_id}"
        found.differs(
            f"record at {message.physical_offset}: has queue offset {message.queue_offset} of {where}, not {following}"
        )
    offsets.append(message.physical_offset)


def _verify_queues(
    store: Store, expected: dict[Queue, tuple[int, array[int]]], found: Findings, progress: Progress
) -> None:
    ranges = {(topic, queue_id): (first, end) for topic, queue_id, first, end in store.queues()}
    total = sum(end - first for first, end in ranges.values())
    with progress("reading the queues", total) as steps:
        for queue, (first, end) in ranges.items():
            found.counts["queues"] += 1
            begin, offsets = expected.pop(queue, (first, array("q")))
            if not found.damages and end != begin + len(offsets):
                found.differs(f"{queue[0]}/{queue[1]}: ends at {end}, by the log at {begin + len(offsets)}")
            _verify_queue(store, queue, (first, end), (begin, offsets), found)
            steps.to(found.counts["queue_entries"])
    for (topic, queue_id), (begin, offsets) in expected.items():
        first, end = store.queue_range(topic, queue_id)
        if first == end == begin + len(offsets):
            found.counts["queues_deleted"] += 1
            continue
        found.differs(f"{topic}/{queue_id}: has no queue, but {len(offsets)} records in the log")


def _verify_queue(
    store: Store, queue: Queue, span: tuple[int, int], expected: tuple[int, array[int]], found: Findings
) -> None:
    """Each entry must point at its record in the log; the read itself compares size and tags code."""
    (topic, queue_id), (at, end), (begin, offsets) = queue, span, expected
    while at < end:
        try:
            messages, following = store.read(topic, queue_id, at, _READ_BATCH)
        except errors.TxStoreError as error:
            if not _is_explained(error, found):
                found.differs(f"{topic}/{queue_id} from {at}: {_first_line(error)}")
            return
        for message in messages:
            found.counts["queue_entries"] += 1
            i = message.queue_offset - begin
            if i >= len(offsets) and not found.log_was_read:
                continue
            if not 0 <= i < len(offsets) or offsets[i] != message.physical_offset:
                in_log = offsets[i] if 0 <= i < len(offsets) else "nothing"
                where = f"{topic}/{queue_id} at {message.queue_offset}"
                found.differs(f"{where}: points at {message.physical_offset}, the log has {in_log} there")
        if following <= at:
            found.differs(f"{topic}/{queue_id}: cannot be read after {at}, it should end at {end}")
            return
        at = following


def _is_explained(error: errors.TxStoreError, found: Findings) -> bool:
    """Tells whether the damage that stopped the log also explains this error, which then needs no line of its own.

    Names of log files sort in the order of the log."""
    if not isinstance(error, errors.StoreCorruptError) or found.stopped_at is None:
        return False
    return (str(error.file), error.offset) >= found.stopped_at


def _verify_transactions(store: Store, found: Findings, progress: Progress) -> None:
    checked_to = store.consumer_offset(HALF_TOPIC, TRANSACTION_GROUP, 0) or 0
    rows = store.transactions()
    with progress("comparing transactions", len(rows)) as steps:
        for number, row in enumerate(rows):
            steps.to(number)
            found.counts[f"transactions_{row.state}"] += 1
            _verify_transaction(store, row, checked_to, found)
    pending = store.stat().pending_transactions
    if pending != found.counts["transactions_pending"]:
        found.differs(f"the table has {pending} pending transactions, the log {found.counts['transactions_pending']}")


def _verify_transaction(store: Store, row: TransactionRow, checked_to: int, found: Findings) -> None:
    name = row.transaction_id or f"with its records at {[offset for _, offset in row.halves] or row.finals}"
    if len(row.finals) > 1:
        found.counts["transactions_committed_twice"] += 1
        found.notes.append(f"transaction {name}: committed {len(row.finals)} times, at {row.finals} (a broker does so)")
    if row.finals and row.discards:
        found.notes.append(f"transaction {name}: committed, and discarded as well (a broker does so)")
    if row.state is TransactionState.PENDING and row.halves and row.halves[-1][0] < checked_to:
        found.differs(f"transaction {name}: is pending, but a broker's checks have passed it (progress {checked_to})")
    halves = {physical_offset for _, physical_offset in row.halves}
    for final in map(store.read_at, row.finals):
        if final.prepared_transaction_offset in halves:
            half = store.read_at(final.prepared_transaction_offset)
            if final.stored_body != half.stored_body:
                found.differs(
                    f"transaction {name}: the message at {final.physical_offset} has another body than its half"
                )
