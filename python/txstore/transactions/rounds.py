"""Rounds: take the due transactions from the store and have each one asked, discarded or postponed.

In:     due transactions, producers that register.
Out:    checks, discards, and the time when each transaction is looked at next.
Always: an error in one transaction does not delay the others. A round ends, however much is due.
Not here: the clock (passed in), the thread that calls a round (`housekeeping`) and those that call checkers (`pool`).
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from txstore._native import DueHalves, StoreStat
from txstore.errors import AlreadyEndedError, MessageNotFoundError, StoreClosedError, TransactionNotFoundError
from txstore.producer.registry import Producers
from txstore.transactions.check import Checks, CheckStore, fields_of
from txstore.transactions.decision import Action, CheckRules, Decision
from txstore.transactions.history import CheckHistory
from txstore.transactions.plan import DueHalf, HalfStore, Planner
from txstore.transactions.pool import QUEUED_MAX, Pool

__all__ = ["CheckRounds", "RoundStore"]

_log = logging.getLogger("txstore.check")

_BATCH = 256  # Due groups that one call takes from the engine.
_PENDING_PAGE = 50_000
_ROUND_HALVES_MAX = 20_000  # A round stops here, so that the other background jobs get their turn.
_BUSY_MS = 1000  # Time until the next try for a transaction whose producer's queue is full.


class RoundStore(HalfStore, CheckStore, Protocol):
    """The calls of the store that a round needs."""

    def halves_due(self, limit: int) -> Sequence[DueHalves]: ...
    def halves_waiting(self, after_half_queue_offset: int, limit: int) -> Sequence[DueHalf]: ...
    def look_again_all(self, due: DueHalves, in_ms: int) -> None: ...
    def local_transaction_ended(self, half_queue_offset: int) -> None: ...
    def discard(self, half_queue_offset: int, prepared_transaction_offset: int) -> object: ...
    def next_due_in_ms(self) -> int | None: ...
    def stat(self) -> StoreStat: ...


class CheckRounds:
    """Takes due transactions from the store and has each one asked, discarded or postponed. Used by one thread."""

    def __init__(
        self,
        store: RoundStore,
        producers: Producers,
        pool: Pool,
        rules: CheckRules,
        history: CheckHistory,
        time_ms: Callable[[], int],
    ) -> None:
        self.planner: Planner = Planner(store, producers, pool, rules)
        """What a round would do with a transaction now."""
        self._checks = Checks(store, producers, pool, history, time_ms)
        self._store = store
        self._producers = producers
        self._rules = rules
        self._refused = 0
        self._without_producer: set[str] = set()
        self._registered: deque[str] = deque()
        self._asked: deque[int] = deque()

    def producer_registered(self, group: str) -> None:
        """Makes transactions that waited for a producer of `group` due at the next round. Thread-safe."""
        self._registered.append(group)

    def ask(self, half_queue_offset: int) -> None:
        """Has a pending transaction checked at the next round, although it is not due. Thread-safe.

        The check counts as any other. Without a live producer of its group it has no effect.
        """
        self._asked.append(half_queue_offset)

    def round(self) -> float | None:
        """Handles all due transactions; returns seconds until more are due (0: now), None if none is pending."""
        self._wake_groups_with_producer()
        self._ask_by_hand()
        for _ in range(_ROUND_HALVES_MAX // _BATCH):
            due = self._store.halves_due(_BATCH)
            for group in due:
                self._handle_all(group)
            if sum(map(len, due)) < _BATCH:
                self._refused = 0  # Only here: retries are spread over everything refused in consecutive rounds.
                break
        left_ms = self._store.next_due_in_ms()
        return None if left_ms is None else max(0, left_ms) / 1000

    def _handle_all(self, due: DueHalves) -> None:
        """Handles transactions that share their facts, in one step if all of them wait equally long."""
        common = self.planner.common(due)
        if common is None or common.action is not Action.WAIT:
            for waiting in due.halves:
                self._handle(waiting, common)
            return
        if common.no_producer:
            self._without_producer.add(due.youngest.producer_group)
        self._store.look_again_all(due, common.look_again_in_ms)

    def _handle(self, waiting: DueHalf, common: Decision | None) -> None:
        """Handles one transaction; an error in it does not delay the others."""
        key = waiting.half_queue_offset
        try:
            if waiting.running and self._producers.get(waiting.owner) is None:
                # Its producer was closed or interrupted before it could report the end of its local transaction.
                self._store.local_transaction_ended(key)
                return
            decision, candidates, half = self.planner.plan(waiting, common)
            if decision.action is Action.DISCARD:
                self._discard(waiting, decision.why)
            elif decision.action is Action.WAIT or half is None:
                if decision.no_producer:
                    self._without_producer.add(waiting.producer_group)
                self._store.look_again(key, decision.look_again_in_ms)
            else:
                # The check counts, and its back-off starts, only when the checker is called, which may never happen.
                self._store.look_again(key, self._rules.transaction_check_interval_ms)
                if not self._checks.send(waiting, candidates, half, decision.look_again_in_ms):
                    # Retries are spread over time, so that 100,000 transactions do not come up every second.
                    self._refused += 1
                    self._store.look_again(key, _BUSY_MS * (1 + self._refused // QUEUED_MAX))
        except StoreClosedError:
            raise
        except (AlreadyEndedError, TransactionNotFoundError):
            return  # It ended in the meantime.
        except Exception as error:
            is_shown = waiting.prepared_transaction_offset < self._store.stat().visible_physical_offset
            if is_shown or not isinstance(error, MessageNotFoundError):
                _log.exception("a pending transaction could not be handled", extra=fields_of(waiting))
            # Otherwise its half message still waits for its sync or its copies.
            self._store.look_again(key, self._rules.transaction_check_interval_ms)

    def _discard(self, waiting: DueHalf, why: str) -> None:
        self._store.discard(waiting.half_queue_offset, waiting.prepared_transaction_offset)
        fields = fields_of(waiting) | {"reason": why, "checks": waiting.checks}
        _log.warning(
            "transaction at half queue offset %d of group %s: discarded: %s",
            waiting.half_queue_offset,
            waiting.producer_group,
            why,
            extra=fields,
        )

    def _ask_by_hand(self) -> None:
        while self._asked:
            wanted = self._asked.popleft()
            for waiting in self._store.halves_waiting(wanted - 1, 1):
                if waiting.half_queue_offset == wanted and not waiting.running and not self.planner.is_asking(wanted):
                    next_ms = self._rules.interval_after_ms(waiting.checks + 1)
                    self._handle(waiting, Decision(Action.ASK, next_ms, "asked by hand"))

    def _wake_groups_with_producer(self) -> None:
        """Makes transactions due whose group had no producer and has one now."""
        came = set()
        while self._registered:
            came.add(self._registered.popleft())
        came &= self._without_producer
        if not came:
            return
        self._without_producer -= came
        after = -1
        # Each page walks all pending transactions, so a few large pages cost less than many small ones.
        while waiting := self._store.halves_waiting(after, _PENDING_PAGE):
            for half in waiting:
                # `decide` finds those whose time has not come yet.
                if half.producer_group in came and not half.running:
                    self._store.look_again(half.half_queue_offset, 0)
            after = waiting[-1].half_queue_offset
