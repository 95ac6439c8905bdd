"""A check: one question to a producer about one transaction, and what its answer changes.

In:     a transaction, its half message, the producers to ask.
Out:    an end or another wait, a record in the history, a line of the log.
Always: a check counts only once it was handed to a checker.
Not here: whether to ask (`decision`), the threads that call checkers (`pool`).
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from txstore.errors import TxStoreError
from txstore.message import HalfMessage, LocalTransactionState, utc
from txstore.producer.registry import Producers
from txstore.transactions.answer import Answer, answer_of
from txstore.transactions.history import CheckHistory, CheckRecord
from txstore.transactions.plan import Candidate, DueHalf
from txstore.transactions.pool import Pool, Result

__all__ = ["CheckStore", "Checks", "fields_of"]

_log = logging.getLogger("txstore.check")


class CheckStore(Protocol):
    """The calls of the store that a check needs."""

    def look_again(self, half_queue_offset: int, in_ms: int, *, asked: bool = False) -> bool: ...
    def check_unknown(
        self, half_queue_offset: int, prepared_transaction_offset: int, producer_group: str | None = None
    ) -> bool: ...
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


class Checks:
    """The checks of one store. Thread-safe."""

    def __init__(
        self,
        store: CheckStore,
        producers: Producers,
        pool: Pool,
        history: CheckHistory,
        time_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._producers = producers
        self._pool = pool
        self._history = history
        self._time_ms = time_ms

    def send(self, waiting: DueHalf, candidates: Iterable[Candidate], half: HalfMessage, next_ms: int) -> bool:
        """Hands a check to the first producer that accepts it; returns whether one did.

        The next step follows `next_ms` after the check was handed to the checker.
        """
        return any(self._ask(waiting, candidate, half, next_ms) for candidate in candidates)

    def _ask(self, waiting: DueHalf, candidate: Candidate, half: HalfMessage, next_ms: int) -> bool:
        number, member, checker = candidate
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
                extra=fields_of(waiting)
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


def fields_of(waiting: DueHalf) -> dict[str, object]:
    """Returns the fields that name a transaction in the log."""
    return {"group": waiting.producer_group, "half_queue_offset": waiting.half_queue_offset}
