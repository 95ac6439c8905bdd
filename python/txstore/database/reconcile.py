"""Reconcile: names committed rows of blocks whose message is neither in the log nor pending.

In:     the rows "committed" of a database; a broker that tells how the log has each transaction.
Out:    the transactions whose message is missing: a machine was lost, or a backup of its store was restored.
Always: a row is compared only if it is not older than the log's first message. It is read before the log is asked, so a
        transaction that commits meanwhile is not missing: its half message is stored before its row.
Not here: messages within the user's own transaction (`outbox`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from txstore._native import StoreStat
from txstore.database.fork import outside_database
from txstore.database.session import Handle
from txstore.database.statements import SELECT_COMMITTED
from txstore.message import TransactionState, utc

__all__ = ["MissingTransaction", "ReconciledBroker", "missing_transactions"]

_ROWS = 1000  # Compared in one step.
_HAS_MESSAGE = (TransactionState.COMMITTED, TransactionState.PENDING)


@dataclass(frozen=True, slots=True)
class MissingTransaction:
    """A local transaction that the database has committed, and whose message no consumer can get."""

    transaction_id: str
    committed_timestamp: datetime
    """When its row was written, by the clock of the process that wrote it."""
    state: TransactionState | None
    """How the log has it: discarded, rolled back, or ended by a broker without a trace; None: not at all."""


class ReconciledBroker(Protocol):
    """A blocking broker that tells how its log has transactions."""

    def stat(self) -> StoreStat: ...
    def oldest_timestamp(self) -> datetime | None: ...
    def transaction_states(self, transaction_ids: Sequence[str]) -> list[TransactionState | None]: ...


async def missing_transactions(handle: Handle, broker: ReconciledBroker) -> list[MissingTransaction]:
    """Returns the missing transactions, oldest first."""
    since, found = _since_ms(broker), list[tuple[int, str, TransactionState | None]]()
    after = ""
    while since is not None:
        rows = await handle.fetch(SELECT_COMMITTED, after=after, since_ms=since, rows=_ROWS)
        await handle.rollback()
        if not rows:
            break
        after = rows[-1][0]
        with outside_database():
            states = broker.transaction_states([transaction_id for transaction_id, _ in rows])
            found += [
                (created_ms, transaction_id, state)
                for (transaction_id, created_ms), state in zip(rows, states, strict=True)
                if state not in _HAS_MESSAGE
            ]
        since = _since_ms(broker)  # Retention may have removed messages meanwhile.
    found = sorted((one for one in found if since is not None and one[0] >= since), key=lambda one: one[:2])
    return [MissingTransaction(name, utc(created_ms), state) for created_ms, name, state in found]


def _since_ms(broker: ReconciledBroker) -> int | None:
    """Returns the time of the first row to compare. One of the same millisecond as the first message may be older, but
    not if nothing was removed from the log."""
    with outside_database():
        first = broker.stat().min_physical_offset
        oldest = broker.oldest_timestamp()
    return None if oldest is None else round(oldest.timestamp() * 1000) + (first > 0)
