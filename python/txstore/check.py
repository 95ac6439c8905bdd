"""Checks: whether a pending transaction waits, is asked about or is discarded; who is asked; the pool that asks.

In: facts about what waits (`half/scan`), the living producers, the settings. Out: a `Decision`, and answers that end
transactions. Always: `decide` is pure; only a check that was really handed to a checker counts; one slow or hanging
producer delays no other; an answer that is no answer is UNKNOWN, with the reason kept. Not here: the time (passed in)
and the thread that calls a round (`housekeeping`).
"""

import enum
import logging
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txstore._native import DueHalves
from txstore.config import BrokerConfig, milliseconds
from txstore.errors import AlreadyEndedError, StoreClosedError, TransactionNotFoundError, TxStoreError
from txstore.interface import ProducerMember
from txstore.listener import Checker, judged
from txstore.message import HalfMessage, LocalTransactionState, StoredHalf
from txstore.producer_registry import Producers
from txstore.transaction import CheckHistory, CheckRecord

__all__ = [
    "Action",
    "Answer",
    "CheckPool",
    "CheckRounds",
    "CheckRules",
    "CheckStore",
    "Decision",
    "Waiting",
    "decide",
    "decide_alike",
]

_log = logging.getLogger("txstore.check")

_THREAD_NAME = "txstore-check"
_BATCH = 256  # Halves taken from the engine at once.
_LONELY_PAGE = 50_000
_ROUND_HALVES_MAX = 20_000  # Then the other jobs get their turn.
_QUEUED_MAX = 4096  # Checks of one producer that may stand in line.
_RUNNING_LOOK_MS = 100  # At least between two looks at one whose local transaction still runs.
_BUSY_MS = 1000  # When to look again at one whose producer's line is full.


# What to do -----------------------------------------------------------------------------------------------------------


class Action(enum.Enum):
    """What to do with a pending transaction now."""

    WAIT = "wait"
    ASK = "ask"
    DISCARD = "discard"


class Decision(NamedTuple):
    """What to do, when to look again (ms), and why, in words for a user."""

    action: Action
    look_again_in_ms: int
    why: str
    no_producer: bool = False
    """Whether it waits for a producer to come."""


class Waiting(Protocol):
    """Facts about one pending transaction; the engine's `WaitingHalf`."""

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
    """`Waiting`, what names it, and what chooses who is asked."""

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
    """The settings that `decide` goes by; times in ms."""

    transaction_time_out_ms: int
    transaction_check_interval_ms: int
    transaction_check_max: int
    transaction_check_back_off: float
    file_reserved_time_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "CheckRules":
        return cls(
            transaction_time_out_ms=milliseconds(config.transaction_time_out),
            transaction_check_interval_ms=milliseconds(config.transaction_check_interval),
            transaction_check_max=config.transaction_check_max,
            transaction_check_back_off=config.transaction_check_back_off,
            file_reserved_time_ms=milliseconds(config.file_reserved_time),
        )

    def interval_after_ms(self, checks: int) -> int:
        """From the `checks`-th check (counted from 1) to the next; never beyond the retention time."""
        if self.transaction_check_back_off == 1.0:
            return max(1, self.transaction_check_interval_ms)
        exponent = max(0, checks - 1)
        # In logarithms, since a power of that many checks could overflow.
        first = math.log(max(self.transaction_check_interval_ms, 1))
        log = first + exponent * math.log(self.transaction_check_back_off)
        return max(1, int(math.exp(min(log, math.log(self.file_reserved_time_ms)))))


def decide(waiting: Waiting, rules: CheckRules, *, producers: int, asking: bool = False, group: str = "") -> Decision:
    """Wait, ask or discard, and when to look again. Pure: the ages in `waiting` are the only time there is.

    `producers`: living ones of its group that could be asked; `asking`: a check of it is under way. The rules are
    RocketMQ's (transactionTimeOut, CHECK_IMMUNITY_TIME_IN_SECONDS, transactionCheckInterval, transactionCheckMax,
    fileReservedTime), with three of ours: one whose local transaction still runs is not due, waiting without a producer
    is not counted, and one that is older than the retention time is asked once more before it is discarded.
    """
    interval = max(1, rules.transaction_check_interval_ms)
    if waiting.running:
        wait = min(interval, max(_RUNNING_LOOK_MS, rules.transaction_time_out_ms))
        return Decision(Action.WAIT, wait, "its local transaction still runs")
    if asking:
        return Decision(Action.WAIT, interval, "a check is under way")
    left = _until_due_ms(waiting, rules)
    if left > 0:
        return Decision(Action.WAIT, left, _awaited(waiting, rules))
    checks = waiting.checks
    if checks >= rules.transaction_check_max:
        why = f"{checks} checks brought no end (transaction_check_max is {rules.transaction_check_max})"
        return Decision(Action.DISCARD, interval, why)
    if _last_check_was_too_old(waiting, rules):
        why = "it is older than the retention time (file_reserved_time), and the check since then brought no end"
        return Decision(Action.DISCARD, interval, why)
    if producers < 1:
        why = f"no live producer of group {group} can answer: it needs a listener or a database; waiting is not counted"
        return Decision(Action.WAIT, interval, why, no_producer=True)
    return Decision(Action.ASK, _next_after_ms(waiting, checks + 1, rules), f"due for check {checks + 1}")


def decide_alike(
    youngest: Waiting, oldest: Waiting, rules: CheckRules, *, producers: int, group: str = ""
) -> Decision | None:
    """What `decide` says of each of those that differ only in their ages, by their extremes; None: not the same of all.

    Up to the retention time, growing older only shortens the wait, then ends it by a check: what is said of both
    extremes is said of all between them. After it, when the last check was made decides, for each by itself.
    """
    if _is_too_old(oldest, rules) and _last_check_age_ms(oldest) is not None:
        return None
    decision = decide(youngest, rules, producers=producers, group=group)
    return decision if decision == decide(oldest, rules, producers=producers, group=group) else None


def _until_due_ms(waiting: Waiting, rules: CheckRules) -> int:
    """How long until the next check is due, or until it is discarded after the last one."""
    last_check_age_ms = _last_check_age_ms(waiting)
    if last_check_age_ms is None:
        # However old: before its own time a check could only find a local transaction that still runs.
        immunity_ms = waiting.immunity_ms
        return (rules.transaction_time_out_ms if immunity_ms is None else immunity_ms) - waiting.age_ms
    return _next_after_ms(waiting, waiting.checks, rules, last_check_age_ms)


def _next_after_ms(waiting: Waiting, checks: int, rules: CheckRules, last_check_age_ms: int = 0) -> int:
    """How long until something follows the `checks`-th check, sent so long ago.

    Past the retention time no back-off counts any more: one check follows, and one interval for its answer.
    """
    interval = max(1, rules.transaction_check_interval_ms)
    until_too_old = rules.file_reserved_time_ms - waiting.stored_age_ms + 1
    return min(rules.interval_after_ms(checks) - last_check_age_ms, max(interval - last_check_age_ms, until_too_old))


def _last_check_age_ms(waiting: Waiting) -> int | None:
    """How long ago the last check was sent, None: there was none, or that is not known any more."""
    return waiting.last_check_age_ms if waiting.checks > 0 else None


def _is_too_old(waiting: Waiting, rules: CheckRules) -> bool:
    return waiting.stored_age_ms > rules.file_reserved_time_ms


def _last_check_was_too_old(waiting: Waiting, rules: CheckRules) -> bool:
    """Whether it was older than the retention time already when the last check was sent."""
    last_check_age_ms = _last_check_age_ms(waiting)
    return last_check_age_ms is not None and waiting.stored_age_ms - last_check_age_ms > rules.file_reserved_time_ms


def _awaited(waiting: Waiting, rules: CheckRules) -> str:
    """What the next check waits for."""
    if _last_check_age_ms(waiting) is not None:
        return f"check {waiting.checks} was sent and brought no end yet; the next one follows"
    if waiting.immunity_ms is not None:
        return f"the message's own immunity time is {waiting.immunity_ms} ms"
    return f"first checked after {rules.transaction_time_out_ms} ms"


# The pool -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check brought: a state, and why it is UNKNOWN if nobody said so."""

    state: LocalTransactionState
    reason: str | None = None
    sent: bool = False
    """Whether the question went elsewhere: the answer comes as an end of its own."""


class _Check:
    """One check in the pool. `settled`: its answer was taken, or its time was over."""

    __slots__ = ("ask", "done", "key", "producer", "settled", "started", "starting")

    def __init__(
        self,
        producer: int,
        key: int,
        ask: Callable[[], object],
        starting: Callable[[], bool],
        done: Callable[[Answer], None],
    ) -> None:
        self.producer = producer
        self.key = key
        self.ask = ask
        self.starting = starting
        self.done = done
        self.started: float | None = None
        self.settled = False


class CheckPool:
    """A bounded number of daemon threads that ask checkers, started when there is something to ask.

    Of `threads`, one producer gets half at most, so that a slow one leaves room for the others. A check that takes
    longer than `time_limit` (seconds) is answered UNKNOWN by `expire`, its late answer is ignored, and its thread is
    replaced, up to `hung_max` hung ones in all; the hung one still counts for its producer. `monotonic` tells seconds.
    Nothing is asked after `stop`.
    """

    def __init__(
        self, threads: int, time_limit: float, monotonic: Callable[[], float], *, hung_max: int | None = None
    ) -> None:
        self._threads_max = threads
        self._per_producer = max(1, threads // 2)
        self._time_limit = time_limit
        self._hung_max = 4 * threads if hung_max is None else hung_max
        self._monotonic = monotonic
        # Reentrant: closing a forgotten broker may happen in any thread, also in one that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._lines: OrderedDict[int, deque[_Check]] = OrderedDict()
        self._busy: dict[int, int] = {}
        self._asking: dict[int, _Check] = {}
        self._threads = 0
        self._idle = 0
        self._hung_by: dict[int, int] = {}
        self._stopped = False

    def submit(
        self,
        producer: int,
        key: int,
        ask: Callable[[], object],
        *,
        starting: Callable[[], bool],
        done: Callable[[Answer], None],
    ) -> bool:
        """Puts a check in its producer's line.

        False: the line is full, `key` stands in one already, all that the producer may occupy hangs, or it is stopped.

        In a thread of the pool: `starting()` right before asking (False: do not ask after all), then `ask()`, then
        `done(answer)`, which `expire` calls instead when the time is over.
        """
        with self._changed:
            line = self._lines.setdefault(producer, deque())
            if self._stopped or key in self._asking or len(line) >= _QUEUED_MAX or self._hangs(producer):
                return False
            check = _Check(producer, key, ask, starting, done)
            self._asking[key] = check
            line.append(check)
            self._changed.notify()
            self._start_thread()
            return True

    def asking(self, key: int) -> bool:
        """Whether a check of `key` stands in line or is under way."""
        return key in self._asking

    @property
    def is_idle(self) -> bool:
        """Whether no check stands in line or is under way."""
        return not self._asking

    @property
    def hung(self) -> int:
        """Threads whose check's time is over and that have not come back."""
        return sum(self._hung_by.values())

    @property
    def threads(self) -> int:
        """Threads that are not hung."""
        return self._threads

    def expire(self) -> float | None:
        """Answers UNKNOWN for each check whose time is over; returns seconds until the next one's, None: none runs."""
        now = self._monotonic()
        over: list[_Check] = []
        left: float | None = None
        with self._changed:
            for check in list(self._asking.values()):
                if check.started is None or check.settled:
                    continue
                rest = check.started + self._time_limit - now
                if rest <= 0:
                    check.settled = True
                    del self._asking[check.key]
                    self._hung_by[check.producer] = self._hung_by.get(check.producer, 0) + 1
                    self._threads -= 1
                    over.append(check)
                    if self._hangs(check.producer):
                        self._drop_line(check.producer)
                elif left is None or rest < left:
                    left = rest
            self._start_thread()  # Also for what stands in line since the system had no thread left.
        for check in over:
            check.done(Answer(LocalTransactionState.UNKNOWN, f"no answer within {self._time_limit:g} s"))
        return left

    def stop(self, wait: float = 0.0) -> bool:
        """Asks nothing more; waits up to `wait` seconds for what is under way. Whether all have come back."""
        with self._changed:
            self._stopped = True
            for producer in list(self._lines):
                self._drop_line(producer)
            self._changed.notify_all()
            if wait > 0 and threading.current_thread().name != _THREAD_NAME:  # A check must not wait for itself.
                self._changed.wait_for(lambda: not self._asking, wait)
            return not self._asking

    def _hangs(self, producer: int) -> bool:
        """Whether all that a producer may occupy hangs: others of its group should be asked instead."""
        return self._hung_by.get(producer, 0) >= self._per_producer

    def _drop_line(self, producer: int) -> None:
        """Forgets what stands in a producer's line; the round looks at it again at its time."""
        for check in self._lines.pop(producer, ()):
            self._asking.pop(check.key, None)

    def _start_thread(self) -> None:
        """One more thread, if there is more in line than idle ones can take and the bounds allow."""
        standing = sum(map(len, self._lines.values()))
        room = self._threads < self._threads_max and self.hung <= self._hung_max
        if room and standing > self._idle and not self._stopped:
            self._threads += 1
            try:
                threading.Thread(target=self._work, name=_THREAD_NAME, daemon=True).start()
            except RuntimeError:  # The system has no thread left, or the interpreter ends; what stands in line waits.
                self._threads -= 1

    def _work(self) -> None:
        while True:
            check = self._next()
            if check is None:
                return
            if not self._run(check):
                return
            # Nothing of the check is kept while idle: a forgotten broker could not be collected.
            del check

    def _next(self) -> _Check | None:
        """The next check of the producer whose turn it is; waits for one. None: the pool has stopped."""
        with self._changed:
            while not self._stopped:
                for producer, line in list(self._lines.items()):
                    if not line:
                        del self._lines[producer]
                    elif self._busy.get(producer, 0) < self._per_producer:
                        self._lines.move_to_end(producer)
                        self._busy[producer] = self._busy.get(producer, 0) + 1
                        check = line.popleft()
                        check.started = self._monotonic()
                        return check
                self._idle += 1
                try:
                    self._changed.wait()
                finally:
                    self._idle -= 1
            self._threads -= 1
            return None

    def _run(self, check: _Check) -> bool:
        """Asks; whether this thread goes on (False: it was hung and has been replaced)."""
        answer: Answer | None = None
        try:
            if check.starting():
                said = check.ask()
                answer = said if isinstance(said, Answer) else Answer(*judged(said, "the check"))
        except Exception as error:
            answer = Answer(LocalTransactionState.UNKNOWN, f"the check raised {type(error).__name__}: {error}")
        except BaseException as error:  # A SystemExit in a checker must not take the pool's thread with it.
            answer = Answer(LocalTransactionState.UNKNOWN, f"the check raised {type(error).__name__}")
        with self._changed:
            left = self._busy.get(check.producer, 1) - 1
            if left:
                self._busy[check.producer] = left
            else:
                self._busy.pop(check.producer, None)
            late = check.settled
            check.settled = True
            if late:
                hung = self._hung_by.pop(check.producer, 1) - 1
                if hung:
                    self._hung_by[check.producer] = hung
                self._changed.notify()
                self._start_thread()
                return False
        try:
            if answer is not None:
                check.done(answer)
        except Exception:
            _log.exception("the answer of a check could not be taken", extra={"half_queue_offset": check.key})
        finally:
            with self._changed:
                self._asking.pop(check.key, None)
                self._changed.notify_all()
        return True


# The rounds -----------------------------------------------------------------------------------------------------------


class CheckStore(Protocol):
    """What a round asks of the store."""

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
    """Takes what is due from the store, decides, and has it asked, discarded or looked at again. For one thread."""

    def __init__(
        self,
        store: CheckStore,
        producers: Producers,
        pool: CheckPool,
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
        self._lonely: set[str] = set()
        self._awaited: deque[str] = deque()

    def producer_came(self, group: str) -> None:
        """What waited for a producer of this group is due at the next round. Any thread may say so."""
        self._awaited.append(group)

    def round(self) -> float | None:
        """Deals with what is due; returns seconds until more will be (0: at once), None: nothing pends."""
        self._wake_lonely()
        for _ in range(_ROUND_HALVES_MAX // _BATCH):
            due = self._store.halves_due(_BATCH)
            for alike in due:
                self._look_at_all(alike)
            if sum(map(len, due)) < _BATCH:
                self._refused = 0  # Not before: what many rounds refuse in a row is spread as one.
                break
        left_ms = self._store.next_due_in_ms()
        return None if left_ms is None else max(0, left_ms) / 1000

    def judge(
        self, waiting: DueHalf, common: Decision | None = None
    ) -> tuple[Decision, list[tuple[int, ProducerMember, Checker]], HalfMessage | None]:
        """The decision, who could be asked (best first), and the message. Also for showing; changes nothing.

        After a check that was not answered, the next producer of the group comes first, in turn.

        `common`: what was decided about all that are like it.
        """
        group, key = waiting.producer_group, waiting.half_queue_offset
        members = self._producers.of_group(group, waiting.owner)
        asking = self._pool.asking(key)
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

    def _look_at_all(self, due: DueHalves) -> None:
        """Deals with those that are alike: in one step if all of them wait as long."""
        common = self._common(due)
        if common is None or common.action is not Action.WAIT:
            for waiting in due.halves:
                self._look(waiting, common)
            return
        if common.no_producer:
            self._lonely.add(due.youngest.producer_group)
        self._store.look_again_all(due, common.look_again_in_ms)

    def _common(self, due: DueHalves) -> Decision | None:
        """What is decided about all of them, if it is the same."""
        youngest = due.youngest
        if youngest.running and self._producers.get(youngest.owner) is None:
            return None
        if not self._pool.is_idle and any(map(self._pool.asking, due.half_queue_offsets)):
            return None
        group = youngest.producer_group
        producers = len(self._producers.of_group(group))
        return decide_alike(youngest, due.oldest, self._rules, producers=producers, group=group)

    def _look(self, waiting: DueHalf, common: Decision | None) -> None:
        """Deals with one; whatever goes wrong with it delays no other."""
        key = waiting.half_queue_offset
        try:
            if waiting.running and self._producers.get(waiting.owner) is None:
                # Its producer was closed, or interrupted, before it could say that its local transaction has ended.
                self._store.local_transaction_ended(key)
                return
            decision, able, half = self.judge(waiting, common)
            if decision.action is Action.DISCARD:
                self._discard(waiting, decision.why)
            elif decision.action is Action.WAIT or half is None:
                if decision.no_producer:
                    self._lonely.add(waiting.producer_group)
                self._store.look_again(key, decision.look_again_in_ms)
            else:
                # Not counted yet: it is when the checker is really called. Until then no back-off: it may never be.
                self._store.look_again(key, self._rules.transaction_check_interval_ms)
                if not self._submit(waiting, able, half, decision.look_again_in_ms):
                    # Spread, so that a hundred thousand of them do not come up every second.
                    self._refused += 1
                    self._store.look_again(key, _BUSY_MS * (1 + self._refused // _QUEUED_MAX))
        except StoreClosedError:
            raise
        except (AlreadyEndedError, TransactionNotFoundError):
            return  # It ended while we looked.
        except Exception:
            _log.exception("a pending transaction could not be looked at", extra=_fields(waiting))
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
        """Hands the check to the first producer that has room; home first."""
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
                    self._store.look_again(key, 0)  # It left while the check stood in line: another one is asked.
                    return False
                asked_at = self._time_ms()
                return self._store.look_again(key, next_ms, asked=True)  # False: it ended while it stood in line.
            except TxStoreError:
                return False  # The store was closed.

        def done(answer: Answer) -> None:
            reason = answer.reason
            try:
                self._end(waiting, half, answer)
            except TxStoreError as error:
                reason = f"the end failed: {error}"
            self._history.add(key, CheckRecord(asked_at, repr(member), answer.state, reason))
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
            if answer.reason is None:  # Somebody said so.
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

    def _wake_lonely(self) -> None:
        """Makes due what waited for a producer of a group that now has one."""
        came = set()
        while self._awaited:
            came.add(self._awaited.popleft())
        came &= self._lonely
        if not came:
            return
        self._lonely -= came
        after = -1
        # Each page looks through all that pends, so few large ones serve many.
        while waiting := self._store.halves_waiting(after, _LONELY_PAGE):
            for half in waiting:
                # One whose own time has not come yet is found so by `decide`.
                if half.producer_group in came and not half.running:
                    self._store.look_again(half.half_queue_offset, 0)
            after = waiting[-1].half_queue_offset


def _fields(waiting: DueHalf) -> dict[str, object]:
    return {"group": waiting.producer_group, "half_queue_offset": waiting.half_queue_offset}
