"""Prepares a store for a RocketMQ 5 broker that takes it over: the messages that wait for a time of their own.

In:     the path of a store that no process has open.
Out:    how many messages now wait in the broker's timer, and what a broker does not deliver at its time.
Always: each message is delivered once, by txstore or by the broker, also if this is killed and repeated.
Not here: how a message is moved (the engine).
"""

from __future__ import annotations

from dataclasses import dataclass

from txstore import EmbeddedBroker
from txstore.inspection.opening import writing_broker

__all__ = ["HandedOver", "hand_over"]

_HALF_TIME = "TXSTORE_DELIVER_MS"


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What handing a store over did."""

    handed_over: int
    """Messages that wait in the broker's timer."""
    delivered: int
    """Delayed and timed messages that were due, and are delivered."""
    left: list[str]
    """Why some timed messages wait as before, and are not delivered by a broker."""
    pending: int
    """Pending transactions with a time of their own, whose messages a broker delivers at the commit."""


def hand_over(path: str) -> HandedOver:
    """Hands the messages that wait for a time of their own over to the broker that opens the store next.

    Raises StoreLockedError if a process has the store open.
    """
    with writing_broker(path) as broker:
        # What is due is delivered here: a broker repeats such messages if it is killed.
        delivered, left = _deliver_due(broker)
        moved, not_moved = broker.store.hand_over_timed()
        return HandedOver(moved, delivered, left + not_moved, _pending_with_time(broker))


def _deliver_due(broker: EmbeddedBroker) -> tuple[int, list[str]]:
    total, left = 0, []
    while True:
        delivered, passed_over, next_in_ms = broker.store.deliver_delayed()
        total += delivered
        left += passed_over
        if next_in_ms is None or next_in_ms > 0:
            return total, left


def _pending_with_time(broker: EmbeddedBroker) -> int:
    halves = (broker.store.read_at(row.prepared_transaction_offset) for row in broker.transactions())
    return sum(_HALF_TIME in half.properties for half in halves)
