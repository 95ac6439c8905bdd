"""Plans for pending transactions: the decision, and the producers to ask, best first.

In:     facts about due transactions, the live producers, the checks in progress, the settings.
Out:    a `Plan` for one transaction, or one decision for many that share their facts.
Always: changes nothing, so it also tells users what comes next.
Not here: the rule (`decision`), carrying a plan out (`rounds`).
"""

from typing import NamedTuple, Protocol

from txstore._native import DueHalves
from txstore.interface import ProducerMember
from txstore.listener import Checker
from txstore.message import HalfMessage, StoredHalf
from txstore.producer.registry import Producers
from txstore.transactions.decision import Action, CheckRules, Decision, Waiting, decide, decide_alike
from txstore.transactions.pool import Pool

__all__ = ["Candidate", "DueHalf", "HalfStore", "Plan", "Planner"]


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


class Candidate(NamedTuple):
    """A producer that can answer a check: its id at the broker, the producer, and its checker."""

    number: int
    member: ProducerMember
    checker: Checker


class Plan(NamedTuple):
    """What to do with one transaction; whom to ask, best first, and about which message."""

    decision: Decision
    candidates: list[Candidate]
    half: HalfMessage | None
    """None unless there is somebody to ask."""


class HalfStore(Protocol):
    """The call of the store that a plan needs."""

    def half(self, half_queue_offset: int) -> StoredHalf: ...


class Planner:
    """Makes plans for the pending transactions of one store."""

    def __init__(self, store: HalfStore, producers: Producers, pool: Pool, rules: CheckRules) -> None:
        self._store = store
        self._producers = producers
        self._pool = pool
        self._rules = rules

    def is_asking(self, half_queue_offset: int) -> bool:
        """Tells whether a check of the transaction is in progress."""
        return self._pool.has(half_queue_offset)

    def common(self, due: DueHalves) -> Decision | None:
        """Returns the decision that holds for all transactions that share these facts, or None."""
        youngest = due.youngest
        if youngest.running and self._producers.get(youngest.owner) is None:
            return None
        if not self._pool.is_idle and any(map(self._pool.has, due.half_queue_offsets)):
            return None
        group = youngest.producer_group
        producers = len(self._producers.of_group(group))
        return decide_alike(youngest, due.oldest, self._rules, producers=producers, group=group)

    def plan(self, waiting: DueHalf, common: Decision | None = None) -> Plan:
        """Returns the plan for one transaction.

        After a check without an answer, the next producer of the group in turn comes first. `common` is the decision
        already made for all transactions that share these facts.
        """
        group, key = waiting.producer_group, waiting.half_queue_offset
        members = self._producers.of_group(group, waiting.owner)
        asking = self._pool.has(key)
        decision = common or decide(waiting, self._rules, producers=len(members), asking=asking, group=group)
        if decision.action is not Action.ASK:
            return Plan(decision, [], None)
        half = HalfMessage(self._store.half(key))
        able = [
            Candidate(number, member, checker)
            for number, member in members
            if (checker := member.checker_for(half.topic, half.tags)) is not None
        ]
        if not able:
            return Plan(decide(waiting, self._rules, producers=0, group=group), [], None)
        if not waiting.answered:
            turn = waiting.checks % len(able)
            able = able[turn:] + able[:turn]
        return Plan(decision, able, half)
