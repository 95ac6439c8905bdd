"""Transactions: lists, ends, discards and resumes them.

In:     a transaction's id, or what `prepare` returned.
Out:    an end, or a description that explains itself.
Always: ending twice the same way succeeds.
Not here: how a transaction is explained (`trace`), when a check is due (`decision`).
"""

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

from txstore._native import EndResult, SendResult, Store, StoredMessage, TransactionRow, WaitingHalf
from txstore.errors import InvalidOptionError, MessageNotFoundError, OffsetTooOldError, TransactionNotFoundError
from txstore.message import (
    Half,
    HalfMessage,
    LocalTransactionState,
    SentMessage,
    TransactionState,
    transaction_id_of,
)
from txstore.transactions.history import CheckHistory
from txstore.transactions.pending import PendingTransaction
from txstore.transactions.trace import TransactionTrace, trace

__all__ = ["Outlook", "Transactions"]

# Looking up a member in its enum class takes longer than the rest of `end`.
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_PAGE, _PAGE_MAX = 1000, 100_000


class Outlook(NamedTuple):
    """What comes next for a pending transaction: after how many ms at most (0: it is due), and why."""

    in_ms: int
    why: str


class _Wanted(NamedTuple):
    """Filters of pending transactions; None lets all pass."""

    group: str | None
    topic: str | None
    id_prefix: str | None
    older_than: timedelta | None


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
        id_prefix: str | None = None,
        older_than: timedelta | None = None,
        limit: int | None = None,
    ) -> list[PendingTransaction]:
        """Returns pending transactions, oldest first, at most `limit`."""
        wanted = _Wanted(group, topic, id_prefix, older_than)
        matching = (one for waiting in self.waiting() if (one := self._matching(waiting, wanted)) is not None)
        return list(itertools.islice(matching, limit))

    def page(
        self,
        *,
        group: str | None,
        topic: str | None,
        id_prefix: str | None,
        older_than: timedelta | None,
        after: int,
        limit: int,
        examine_max: int,
    ) -> tuple[list[PendingTransaction], int, int | None]:
        """Returns pending transactions with a half queue offset above `after`, how many were compared with the filters
        (at most `examine_max`), and where to continue: None at the end."""
        wanted = _Wanted(group, topic, id_prefix, older_than)
        found: list[PendingTransaction] = []
        examined = 0
        while examined < examine_max:
            batch = self._store.halves_waiting(after, min(_PAGE, examine_max - examined))
            if not batch:
                return found, examined, None
            for waiting in batch:
                if len(found) == limit:
                    return found, examined, after
                examined, after = examined + 1, waiting.half_queue_offset
                if (one := self._matching(waiting, wanted)) is not None:
                    found.append(one)
        return found, examined, after

    def _matching(self, waiting: WaitingHalf, wanted: "_Wanted") -> PendingTransaction | None:
        """Returns the transaction if the filters let it pass."""
        if wanted.group is not None and waiting.producer_group != wanted.group:
            return None
        if wanted.older_than is not None and waiting.stored_age_ms < wanted.older_than / timedelta(milliseconds=1):
            return None
        try:
            stored = self._store.half(waiting.half_queue_offset)
        except (TransactionNotFoundError, MessageNotFoundError, OffsetTooOldError):
            return None  # It ended in the meantime, and retention removed it.
        prefix = wanted.id_prefix
        named = prefix is None or (HalfMessage(stored).transaction_id or "").startswith(prefix)
        return self._describe(waiting, stored) if named and wanted.topic in (None, stored.real_topic) else None

    def is_pending(self, topic: str) -> bool:
        """Tells whether a transaction of a topic is pending."""
        return bool(self.pending(topic=topic, limit=1))

    def finished(
        self,
        state: TransactionState | None,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        limit: int | None = None,
    ) -> list[TransactionRow]:
        """Returns the log's transactions by state (None: all), in order. Reads the whole log."""
        rows = [
            row
            for row in self._store.transactions()
            if (state is None or row.state == state)
            and (group is None or row.producer_group == group)
            and (topic is None or row.topic == topic)
            and (id_prefix is None or (row.transaction_id or "").startswith(id_prefix))
        ]
        return rows if limit is None else rows[:limit]

    def trace(self, transaction_id: str) -> TransactionTrace:
        """Returns the history of the newest transaction with that id. Raises TransactionNotFoundError."""
        row = self._store.transaction(transaction_id)
        pending: PendingTransaction | None = None
        if row.state is TransactionState.PENDING:
            newest = row.halves[-1][0]
            for waiting in self._store.halves_waiting(newest - 1, 1):
                if waiting.half_queue_offset == newest:
                    pending = self._describe(waiting, self._store.half(newest))
        return trace(self._store, row, self._history.of(offset for offset, _ in row.halves), pending)

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
