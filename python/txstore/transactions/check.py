"""Checks: decides when a pending transaction is checked or discarded, and has its producers asked.

In:     facts about pending transactions (`half/scan`), the live producers, the settings.
Out:    a `Decision` for each transaction, and answers that end transactions.
Always: `decide` is pure. A check counts only once it was handed to a checker. An answer that is not a state counts as
        UNKNOWN, and its reason is kept.
Not here: the clock (passed in), the thread that calls a round (`housekeeping`) and those that call checkers (`pool`).
"""

import enum
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txstore._native import DueHalves
from txstore.config import BrokerConfig, milliseconds
from txstore.errors import AlreadyEndedError, StoreClosedError, TransactionNotFoundError, TxStoreError
from txstore.interface import ProducerMember
from txstore.listener import Checker, parse_answer
from txstore.message import HalfMessage, LocalTransactionState, StoredHalf, utc
from txstore.producer.registry import Producers
from txstore.transactions.pool import QUEUED_MAX, Pool, Result, TimeLimitError
from txstore.transactions.transaction import CheckHistory, CheckRecord

__all__ = [
    "Action",
    "Answer",
    "CheckRounds",
    "CheckRules",
    "CheckStore",
    "Decision",
    "Waiting",
    "answer_of",
    "decide",
    "decide_alike",
]

_log = logging.getLogger("txstore.check")

_BATCH = 256  # Due groups that one call takes from the engine.
_PENDING_PAGE = 50_000
_ROUND_HALVES_MAX = 20_000  # A round stops here, so that the other background jobs get their turn.
_RUNNING_LOOK_MS = 100  # Shortest time between two looks at a transaction whose local transaction still runs.
_BUSY_MS = 1000  # Time until the next try for a transaction whose producer's queue is full.


# What to do -----------------------------------------------------------------------------------------------------------


class Action(enum.Enum):
    """What to do with a pending transaction now."""

    WAIT = "wait"
    ASK = "ask"
    DISCARD = "discard"


class Decision(NamedTuple):
    """What to do, after how many ms to look again, and the reason in words for a user."""

    action: Action
    look_again_in_ms: int
    why: str
    no_producer: bool = False
    """Whether the transaction waits because its group has no live producer."""


class Waiting(Protocol):
    """Facts about one pending transaction. The engine's `WaitingHalf` satisfies it."""

    @property
    def running(self) -> bool: ...
    @property
    def age_ms(self) -> int: ...
    @property
    def stored_age_ms(self) -> int: ...
    @property
    def immunity_ms(self) -> int | None: ...
    @property
    def checks(self) -> int: ...
    @property
    def last_check_age_ms(self) -> int | None: ...


class DueHalf(Waiting, Protocol):
    """The facts of `Waiting`, the transaction's identity, and what decides which producer is asked."""

    @property
    def answered(self) -> bool: ...

    @property
    def half_queue_offset(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    @property
    def producer_group(self) -> str: ...
    @property
    def owner(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CheckRules:
    """The settings that `decide` uses. All times are in ms."""

    transaction_timeout_ms: int
    transaction_check_interval_ms: int
    transaction_check_max: int
    transaction_check_back_off: float
    file_reserved_time_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "CheckRules":
        return cls(
            transaction_timeout_ms=milliseconds(config.transaction_timeout),
            transaction_check_interval_ms=milliseconds(config.transaction_check_interval),
            transaction_check_max=config.transaction_check_max,
            transaction_check_back_off=config.transaction_check_back_off,
            file_reserved_time_ms=milliseconds(config.file_reserved_time),
        )

    def interval_after_ms(self, checks: int) -> int:
        """Returns the time from check number `checks` (from 1) to the next one, at most the retention time."""
        if self.transaction_check_back_off == 1.0:
            return max(1, self.transaction_check_interval_ms)
        exponent = max(0, checks - 1)
        # Logarithms, because a power with that many checks as its exponent could overflow.
        first = math.log(max(self.transaction_check_interval_ms, 1))
        log = first + exponent * math.log(self.transaction_check_back_off)
        return max(1, int(math.exp(min(log, math.log(self.file_reserved_time_ms)))))


def decide(waiting: Waiting, rules: CheckRules, *, producers: int, asking: bool = False, group: str = "") -> Decision:
    """Decides whether to wait, ask or discard, and when to look again.

    Pure: the ages in `waiting` are the only clock. `producers` counts the live producers of its group that can answer;
    `asking` says that a check is in progress. The rules are RocketMQ's (transactionTimeOut,
    CHECK_IMMUNITY_TIME_IN_SECONDS, transactionCheckInterval, transactionCheckMax, fileReservedTime), with three
    additions: a transaction whose local transaction still runs is not due, waiting without a producer is not counted,
    and a transaction older than the retention time is checked once more before it is discarded.
    """
    interval = max(1, rules.transaction_check_interval_ms)
    if waiting.running:
        wait = min(interval, max(_RUNNING_LOOK_MS, rules.transaction_timeout_ms))
        return Decision(Action.WAIT, wait, "its local transaction still runs")
    if asking:
        return Decision(Action.WAIT, interval, "a check is in progress")
    left = _until_due_ms(waiting, rules)
    if left > 0:
        return Decision(Action.WAIT, left, _awaited(waiting, rules))
    checks = waiting.checks
    if checks >= rules.transaction_check_max:
        why = f"{checks} checks did not end it (transaction_check_max is {rules.transaction_check_max})"
        return Decision(Action.DISCARD, interval, why)
    if _last_check_was_too_old(waiting, rules):
        why = "it is older than the retention time (file_reserved_time), and a check since then did not end it"
        return Decision(Action.DISCARD, interval, why)
    if producers < 1:
        why = f"no live producer of group {group} can answer: it needs a listener or a database; this is not counted"
        return Decision(Action.WAIT, interval, why, no_producer=True)
    return Decision(Action.ASK, _next_after_ms(waiting, checks + 1, rules), f"due for check {checks + 1}")


def decide_alike(
    youngest: Waiting, oldest: Waiting, rules: CheckRules, *, producers: int, group: str = ""
) -> Decision | None:
    """Decides once for transactions that differ only in their ages; returns None if one decision does not fit all.

    Up to the retention time, a greater age only shortens the wait and then leads to a check, so a decision that is the
    same for the youngest and the oldest is the same for all between them. After the retention time the decision
    depends on when each transaction was last checked.
    """
    if _is_too_old(oldest, rules) and _last_check_age_ms(oldest) is not None:
        return None
    decision = decide(youngest, rules, producers=producers, group=group)
    return decision if decision == decide(oldest, rules, producers=producers, group=group) else None


def _until_due_ms(waiting: Waiting, rules: CheckRules) -> int:
    """Returns the ms until the next check is due, or until the discard that follows the last check."""
    last_check_age_ms = _last_check_age_ms(waiting)
    if last_check_age_ms is None:
        # Even if it is old: before its immunity time ends, a check could only find a local transaction that runs.
        immunity_ms = waiting.immunity_ms
        return (rules.transaction_timeout_ms if immunity_ms is None else immunity_ms) - waiting.age_ms
    return _next_after_ms(waiting, waiting.checks, rules, last_check_age_ms)


def _next_after_ms(waiting: Waiting, checks: int, rules: CheckRules, last_check_age_ms: int = 0) -> int:
    """Returns the ms from now to the next step after check number `checks`, sent `last_check_age_ms` ago.

    After the retention time the back-off no longer applies: one more check follows, with one interval for its answer.
    """
    interval = max(1, rules.transaction_check_interval_ms)
    until_too_old = rules.file_reserved_time_ms - waiting.stored_age_ms + 1
    return min(rules.interval_after_ms(checks) - last_check_age_ms, max(interval - last_check_age_ms, until_too_old))


def _last_check_age_ms(waiting: Waiting) -> int | None:
    """Returns how long ago the last check was sent; None if there was none, or if its time is unknown."""
    return waiting.last_check_age_ms if waiting.checks > 0 else None


def _is_too_old(waiting: Waiting, rules: CheckRules) -> bool:
    return waiting.stored_age_ms > rules.file_reserved_time_ms


def _last_check_was_too_old(waiting: Waiting, rules: CheckRules) -> bool:
    """Tells whether the transaction was already older than the retention time when it was last checked."""
    last_check_age_ms = _last_check_age_ms(waiting)
    return last_check_age_ms is not None and waiting.stored_age_ms - last_check_age_ms > rules.file_reserved_time_ms


def _awaited(waiting: Waiting, rules: CheckRules) -> str:
    """Describes what the transaction waits for, in words for a user."""
    if _last_check_age_ms(waiting) is not None:
        return f"check {waiting.checks} was sent and did not end it; the next check follows"
    if waiting.immunity_ms is not None:
        return f"the message's own immunity time is {waiting.immunity_ms} ms"
    return f"first checked after {rules.transaction_timeout_ms} ms"


# Answers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a check: a state, and the reason if it counts as UNKNOWN without saying so."""

    state: LocalTransactionState
    reason: str | None = None
    sent: bool = False
    """Whether the check was sent to a remote client, whose answer arrives later as a separate end."""


def answer_of(result: Result) -> Answer:
    """Returns the answer of a check from what its call in the pool returned or raised."""
    error = result.error
    if error is None:
        said = result.value
        return said if isinstance(said, Answer) else Answer(*parse_answer(said, "the check"))
    if isinstance(error, TimeLimitError):
        return Answer(LocalTransactionState.UNKNOWN, str(error))
    text = f": {error}" if isinstance(error, Exception) else ""
    return Answer(LocalTransactionState.UNKNOWN, f"the check raised {type(error).__name__}{text}")


# The rounds -----------------------------------------------------------------------------------------------------------


class CheckStore(Protocol):
    """The calls of the store that a round needs."""

    def halves_due(self, limit: int) -> Sequence[DueHalves]: ...
    def halves_waiting(self, after_half_queue_offset: int, limit: int) -> Sequence[DueHalf]: ...
    def look_again(self, half_queue_offset: int, in_ms: int, *, asked: bool = False) -> bool: ...
    def look_again_all(self, due: DueHalves, in_ms: int) -> None: ...
    def local_transaction_ended(self, half_queue_offset: int) -> None: ...
    def check_unknown(
        self, half_queue_offset: int, prepared_transaction_offset: int, producer_group: str | None = None
    ) -> bool: ...
    def half(self, half_queue_offset: int) -> StoredHalf: ...
    def discard(self, half_queue_offset: int, prepared_transaction_offset: int) -> object: ...
    def end_transaction(
        self,
        half_queue_offset: int,
        prepared_transaction_offset: int,
        *,
        commit: bool,
        transaction_id: str | None = None,
        producer_group: str | None = None,
        from_check: bool = False,
    ) -> object: ...
    def next_due_in_ms(self) -> int | None: ...


class CheckRounds:
    """Takes due transactions from the store and has each one asked, discarded or postponed. Used by one thread."""

    def __init__(
        self,
        store: CheckStore,
        producers: Producers,
        pool: Pool,
        rules: CheckRules,
        history: CheckHistory,
        time_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._producers = producers
        self._pool = pool
        self._rules = rules
        self._history = history
        self._time_ms = time_ms
        self._refused = 0
        self._without_producer: set[str] = set()
        self._registered: deque[str] = deque()

    def producer_registered(self, group: str) -> None:
        """Makes transactions that waited for a producer of `group` due at the next round. Thread-safe."""
        self._registered.append(group)

    def round(self) -> float | None:
        """Handles all due transactions; returns seconds until more are due (0: now), None if none is pending."""
        self._wake_groups_with_producer()
        for _ in range(_ROUND_HALVES_MAX // _BATCH):
            due = self._store.halves_due(_BATCH)
            for group in due:
                self._handle_all(group)
            if sum(map(len, due)) < _BATCH:
                self._refused = 0  # Only here: retries are spread over everything refused in consecutive rounds.
                break
        left_ms = self._store.next_due_in_ms()
        return None if left_ms is None else max(0, left_ms) / 1000

    def plan(
        self, waiting: DueHalf, common: Decision | None = None
    ) -> tuple[Decision, list[tuple[int, ProducerMember, Checker]], HalfMessage | None]:
        """Returns the decision, the producers to ask (best first) and the message. Changes nothing.

        After a check without an answer, the next producer of the group in turn comes first. `common` is the decision
        already made for all transactions that share these facts. Also used to explain a transaction to users.
        """
        group, key = waiting.producer_group, waiting.half_queue_offset
        members = self._producers.of_group(group, waiting.owner)
        asking = self._pool.has(key)
        decision = common or decide(waiting, self._rules, producers=len(members), asking=asking, group=group)
        if decision.action is not Action.ASK:
            return decision, [], None
        half = HalfMessage(self._store.half(key))
        able = [
            (number, member, checker)
            for number, member in members
            if (checker := member.checker_for(half.topic, half.tags)) is not None
        ]
        if able and not waiting.answered:
            turn = waiting.checks % len(able)
            able = able[turn:] + able[:turn]
        if not able:
            decision = decide(waiting, self._rules, producers=0, group=group)
        return decision, able, half

    def _handle_all(self, due: DueHalves) -> None:
        """Handles transactions that share their facts, in one step if all of them wait equally long."""
        common = self._common(due)
        if common is None or common.action is not Action.WAIT:
            for waiting in due.halves:
                self._handle(waiting, common)
            return
        if common.no_producer:
            self._without_producer.add(due.youngest.producer_group)
        self._store.look_again_all(due, common.look_again_in_ms)

    def _common(self, due: DueHalves) -> Decision | None:
        """Returns the decision that holds for all of them, or None."""
        youngest = due.youngest
        if youngest.running and self._producers.get(youngest.owner) is None:
            return None
        if not self._pool.is_idle and any(map(self._pool.has, due.half_queue_offsets)):
            return None
        group = youngest.producer_group
        producers = len(self._producers.of_group(group))
        return decide_alike(youngest, due.oldest, self._rules, producers=producers, group=group)

    def _handle(self, waiting: DueHalf, common: Decision | None) -> None:
        """Handles one transaction; an error in it does not delay the others."""
        key = waiting.half_queue_offset
        try:
            if waiting.running and self._producers.get(waiting.owner) is None:
                # Its producer was closed or interrupted before it could report the end of its local transaction.
                self._store.local_transaction_ended(key)
                return
            decision, able, half = self.plan(waiting, common)
            if decision.action is Action.DISCARD:
                self._discard(waiting, decision.why)
            elif decision.action is Action.WAIT or half is None:
                if decision.no_producer:
                    self._without_producer.add(waiting.producer_group)
                self._store.look_again(key, decision.look_again_in_ms)
            else:
                # The check counts, and its back-off starts, only when the checker is called, which may never happen.
                self._store.look_again(key, self._rules.transaction_check_interval_ms)
                if not self._submit(waiting, able, half, decision.look_again_in_ms):
                    # Retries are spread over time, so that 100,000 transactions do not come up every second.
                    self._refused += 1
                    self._store.look_again(key, _BUSY_MS * (1 + self._refused // QUEUED_MAX))
        except StoreClosedError:
            raise
        except (AlreadyEndedError, TransactionNotFoundError):
            return  # It ended in the meantime.
        except Exception:
            _log.exception("a pending transaction could not be handled", extra=_fields(waiting))
            self._store.look_again(key, self._rules.transaction_check_interval_ms)

    def _discard(self, waiting: DueHalf, why: str) -> None:
        self._store.discard(waiting.half_queue_offset, waiting.prepared_transaction_offset)
        fields = _fields(waiting) | {"reason": why, "checks": waiting.checks}
        _log.warning(
            "transaction at half queue offset %d of group %s: discarded: %s",
            waiting.half_queue_offset,
            waiting.producer_group,
            why,
            extra=fields,
        )

    def _submit(
        self, waiting: DueHalf, able: list[tuple[int, ProducerMember, Checker]], half: HalfMessage, next_ms: int
    ) -> bool:
        """Hands the check to the first producer that accepts it, beginning with the transaction's owner."""
        return any(self._ask(waiting, number, member, checker, half, next_ms) for number, member, checker in able)

    def _ask(
        self, waiting: DueHalf, number: int, member: ProducerMember, checker: Checker, half: HalfMessage, next_ms: int
    ) -> bool:
        key = waiting.half_queue_offset
        asked_at = 0

        def starting() -> bool:
            nonlocal asked_at
            try:
                if self._producers.get(number) is not member:
                    self._store.look_again(key, 0)  # The producer left while the check was queued: ask another one.
                    return False
                asked_at = self._time_ms()
                return self._store.look_again(key, next_ms, asked=True)  # False if it ended while it was queued.
            except TxStoreError:
                return False  # The store was closed.

        def done(result: Result) -> None:
            answer = answer_of(result)
            reason = answer.reason
            try:
                self._end(waiting, half, answer)
            except TxStoreError as error:
                reason = f"the end failed: {error}"
            self._history.add(key, CheckRecord(utc(asked_at), repr(member), answer.state, reason))
            _log.log(
                logging.INFO if reason is None or answer.sent else logging.WARNING,
                "transaction %s of group %s: check %s%s",
                half.transaction_id,
                waiting.producer_group,
                "sent" if answer.sent else f"answered {answer.state.name}",
                "" if reason is None else f": {reason}",
                extra=_fields(waiting)
                | {"transaction_id": half.transaction_id, "answer": answer.state.name, "reason": reason},
            )

        return self._pool.submit(number, key, lambda: checker(half), starting=starting, done=done)

    def _end(self, waiting: DueHalf, half: HalfMessage, answer: Answer) -> None:
        if answer.state is LocalTransactionState.UNKNOWN:
            if answer.reason is None:  # The checker itself answered UNKNOWN.
                self._store.check_unknown(waiting.half_queue_offset, waiting.prepared_transaction_offset)
            return
        self._store.end_transaction(
            waiting.half_queue_offset,
            waiting.prepared_transaction_offset,
            commit=answer.state is LocalTransactionState.COMMIT,
            transaction_id=half.transaction_id,
            producer_group=waiting.producer_group,
            from_check=True,
        )

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


def _fields(waiting: DueHalf) -> dict[str, object]:
    return {"group": waiting.producer_group, "half_queue_offset": waiting.half_queue_offset}
