"""Lists: what operators see of an open store, one page at a time, however much there is.

In:     an open store; filters, and where a page begins.
Out:    pages of transactions, dead letters and delayed messages.
Always: reads only, and a bounded number of records for each page: where that was not enough, the page says where to
        continue.
Not here: the overview (`operations`), lists without a limit (`broker`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from txstore._native import DEAD_LETTER_PREFIX, DISCARD_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, StoredMessage, TransactionRow
from txstore.broker.broker import EmbeddedBroker
from txstore.broker.delay import LEVEL_SECONDS
from txstore.consumer.progress import DeadLetter, dead_letter_of
from txstore.errors import MessageNotFoundError, OffsetTooOldError, StoreCorruptError, TransactionNotFoundError
from txstore.message import HalfMessage, dead_letter_topic
from txstore.transactions.pending import PendingTransaction

__all__ = ["DelayedLevel", "DelayedRow", "DiscardedRow", "LetterPage", "Lists", "PendingPage"]

_EXAMINED_MAX = 10_000
_ROWS_MAX = 1_000
_SAME_KEY_MAX = 64


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Some pending transactions, oldest first."""

    rows: tuple[PendingTransaction, ...]
    examined: int
    """How many were compared with the filters."""
    after: int | None
    """The half queue offset after which the next page begins; None if there are no more."""


@dataclass(frozen=True, slots=True)
class DiscardedRow:
    """A discarded transaction, as it is parked."""

    transaction_id: str | None
    producer_group: str | None
    topic: str
    keys: tuple[str, ...]
    discarded: datetime


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some dead letters of a group, oldest first."""

    letters: tuple[DeadLetter, ...]
    first: int
    """The queue offset of the oldest one that is left."""
    end: int
    """After the newest one."""


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A message that waits for its time."""

    message_id: str | None
    topic: str
    keys: tuple[str, ...]
    stored: datetime
    due: datetime


@dataclass(frozen=True, slots=True)
class DelayedLevel:
    """The messages of one delay level that wait for their time."""

    level: int
    """0 for the messages that have a time of their own."""
    seconds: int
    waiting: int
    next: tuple[DelayedRow, ...]
    """Those that are due next."""


class Lists:
    """Pages of an open store. Thread-safe. `time_ms` returns the time of day."""

    def __init__(self, broker: EmbeddedBroker, time_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._time_ms = time_ms

    def pending_page(
        self,
        group: str | None,
        topic: str | None,
        id_prefix: str | None,
        older_than: timedelta | None,
        after: int,
        limit: int,
    ) -> PendingPage:
        """Returns pending transactions whose half queue offset is above `after` (-1: all), at most `limit`.

        Compares at most 10,000 of them with the filters.
        """  # fmt: skip
        rows, examined, last = self._broker._transactions.page(
            group=group,
            topic=topic,
            id_prefix=id_prefix,
            older_than=older_than,
            after=after,
            limit=_rows(limit),
            examine_max=_EXAMINED_MAX,
        )
        return PendingPage(tuple(rows), examined, last)

    def transactions_by_key(self, key: str) -> list[TransactionRow]:
        """Returns the transactions whose half message has this key or unique id, newest first, in any state."""
        found: dict[str, TransactionRow] = {}
        for stored in self._broker.store.query(HALF_TOPIC, key, _SAME_KEY_MAX):
            name = HalfMessage(stored).transaction_id
            if name is None or name in found:
                continue
            try:
                found[name] = self._broker.store.transaction(name)
            except TransactionNotFoundError:
                continue  # Retention has removed it meanwhile.
        return list(found.values())

    def transaction_message(self, transaction_id: str) -> StoredMessage:
        """Returns the half message of a transaction as stored. Raises TransactionNotFoundError, MessageNotFoundError,
        OffsetTooOldError."""
        row = self._broker.store.transaction(transaction_id)
        if not row.halves:
            raise MessageNotFoundError(f"retention has removed the half message of transaction {transaction_id}")
        return self._broker.store.read_at(row.halves[-1][1])

    def discarded_page(self, start: int, limit: int) -> tuple[list[DiscardedRow], int]:
        """Returns discarded transactions, newest first, without the first `start`; and how many there are.

        One that was resumed since is still included.
        """
        store = self._broker.store
        first, end = store.queue_range(DISCARD_TOPIC, 0)
        above = end - max(0, start)
        below = max(first, above - _rows(limit))
        found: list[StoredMessage] = []
        while above > below:
            batch, below = store.read(DISCARD_TOPIC, 0, below, above - below)
            if not batch:
                break
            found += batch
        return [_discarded(one) for one in reversed(found)], end - first

    def dead_groups(self) -> dict[str, int]:
        """Returns the groups with dead letters, and how many."""
        found: dict[str, int] = {}
        for topic, _, first, end in self._broker.store.queues():
            if topic.startswith(DEAD_LETTER_PREFIX) and end > first:
                group = topic.removeprefix(DEAD_LETTER_PREFIX)
                found[group] = found.get(group, 0) + end - first
        return found

    def dead_letter_page(self, group: str, start: int, limit: int) -> LetterPage:
        """Returns a group's dead letters from a queue offset on, at most `limit`."""
        store, topic = self._broker.store, dead_letter_topic(group)
        first, end = store.queue_range(topic, 0)
        messages: list[StoredMessage] = []
        at, wanted = max(first, start), _rows(limit)
        while at < end and len(messages) < wanted:
            batch, at = store.read(topic, 0, at, wanted - len(messages))
            if not batch:
                break
            messages += batch
        return LetterPage(tuple(dead_letter_of(group, one) for one in messages), first, end)

    def delayed_levels(self, limit: int) -> list[DelayedLevel]:
        """Returns the delay levels with messages that wait, each with the next `limit` of them.

        Those with a time of their own are level 0.
        """  # fmt: skip
        now_ms = self._time_ms()
        levels = [
            self._delayed(queue_id, first, end, now_ms, _rows(limit))
            for topic, queue_id, first, end in self._broker.store.queues()
            if topic == SCHEDULE_TOPIC and queue_id < len(LEVEL_SECONDS) and end > first
        ]
        timed = self._broker.store.timed_messages()
        return [DelayedLevel(0, 0, timed, tuple(self._timed(_rows(limit)))), *levels] if timed else levels

    def _timed(self, limit: int) -> Iterator[DelayedRow]:
        store = self._broker.store
        for due_ms, physical_offset in store.first_timed(limit):
            try:
                one = store.read_at(physical_offset)
            except (MessageNotFoundError, OffsetTooOldError, StoreCorruptError):
                continue  # Its delivery reports it.
            due = datetime.fromtimestamp(due_ms / 1000, UTC)
            yield DelayedRow(one.message_id, one.real_topic, one.keys, one.store_timestamp, due)

    def _delayed(self, queue_id: int, first: int, end: int, now_ms: int, limit: int) -> DelayedLevel:
        store, seconds = self._broker.store, LEVEL_SECONDS[queue_id]
        # A level's messages are due in the order in which they were stored.
        at = max(first, store.search_offset(SCHEDULE_TOPIC, queue_id, now_ms - 1000 * seconds))
        try:
            messages, _ = store.read(SCHEDULE_TOPIC, queue_id, at, limit)
        except OffsetTooOldError:
            messages = []
        delay = timedelta(seconds=seconds)
        rows = [
            DelayedRow(one.message_id, one.real_topic, one.keys, one.store_timestamp, one.store_timestamp + delay)
            for one in messages
        ]
        return DelayedLevel(queue_id + 1, seconds, end - at, tuple(rows))


def _rows(limit: int) -> int:
    return max(1, min(limit, _ROWS_MAX))


def _discarded(stored: StoredMessage) -> DiscardedRow:
    half = HalfMessage(stored)
    group = stored.properties.get("PGROUP")
    return DiscardedRow(half.transaction_id, group, stored.real_topic, stored.keys, stored.store_timestamp)
