"""Decides what to do with a pending transaction now: wait, ask its producers, or discard it.

In:     facts about a pending transaction (the engine's `transaction/scan`), the settings, the number of live producers.
Out:    a `Decision`, with the time until the next look and the reason in words.
Always: pure. The ages in the facts are the only clock.
Not here: which producer is asked (`plan`), asking (`check`), when decisions are made (`rounds`).
"""

import enum
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txstore.config import BrokerConfig, milliseconds

__all__ = ["Action", "CheckRules", "Decision", "Waiting", "decide", "decide_alike"]

_RUNNING_LOOK_MS = 100  # Shortest time between two looks at a transaction whose local transaction still runs.


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
        return f"the message's own immunity time is {waiting.immunity_ms / 1000:g} s"
    return f"first checked {rules.transaction_timeout_ms / 1000:g} s after it was stored"
