"""A pending transaction, as users see it: its facts, its checks, and what it waits for."""

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["PendingTransaction"]


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """One pending transaction, as `broker.transactions()` lists it."""

    transaction_id: str | None
    producer_group: str
    topic: str
    """The real topic."""
    half_queue_offset: int
    prepared_transaction_offset: int
    """The half's physical offset, in bytes of the log."""
    age: timedelta
    """Since it was stored, or since its local transaction ended in this process."""
    stored_age: timedelta
    checks: int
    """Checks that were sent."""
    last_check: timedelta | None
    """How long ago the last check was sent; None if there was none since the store was opened."""
    owner: str | None
    """The producer that began it, if it lives in this process."""
    running: bool
    """Whether its local transaction still runs in this process."""
    next_check: timedelta | None
    """Time until it is looked at next; zero if it is due; None if the store is open read-only."""
    why: str
    """What it waits for."""
