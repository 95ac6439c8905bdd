"""Activity: how fast a store's messages, groups and pending transactions change.

In:     an open store, or the server that has it open; a sample of it from a moment before.
Out:    its state as JSON, with rates per second.
Always: reads only.
Not here: how it is shown (`txstore.cli.top`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from txstore import EmbeddedBroker, RemoteBroker
from txstore._native import is_system_topic
from txstore.config import milliseconds

__all__ = ["Sample", "rates", "sample"]

_OLDEST_ROWS = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a store at one moment."""

    seconds: float
    """Monotonic."""
    log_bytes: int
    log_end: int
    messages: dict[str, int]
    """Topic → messages."""
    sent: dict[str, int]
    """Topic → messages that were ever in its queues."""
    lag: dict[tuple[str, str], int]
    """(group, topic) → messages not acknowledged."""
    acknowledged: dict[tuple[str, str], int]
    """(group, topic) → sum of its offsets."""
    pending: int
    oldest: list[dict[str, Any]]
    """The transactions that have been pending longest."""


def sample(broker: EmbeddedBroker | RemoteBroker) -> Sample:
    """Takes a sample."""
    stat = broker.stat()
    queues = [queue for queue in broker.queues() if not is_system_topic(queue.topic)]
    lag: dict[tuple[str, str], int] = {}
    acknowledged: dict[tuple[str, str], int] = {}
    for rows in broker.lag_by_group().values():
        for row in rows:
            key = (row.group, row.topic)
            lag[key] = lag.get(key, 0) + row.lag
            acknowledged[key] = acknowledged.get(key, 0) + (row.consumer_offset or 0)
    return Sample(
        seconds=time.monotonic(),
        log_bytes=stat.max_physical_offset - stat.min_physical_offset,
        log_end=stat.max_physical_offset,
        messages=_sums((queue.topic, queue.end - queue.first) for queue in queues),
        sent=_sums((queue.topic, queue.end) for queue in queues),
        lag=lag,
        acknowledged=acknowledged,
        pending=stat.pending_transactions,
        oldest=[
            {
                "transaction_id": one.transaction_id,
                "topic": one.topic,
                "producer_group": one.producer_group,
                "age_ms": milliseconds(one.stored_age),
                "checks": one.checks,
            }
            for one in broker.transactions(limit=_OLDEST_ROWS)
        ],
    )


def _sums(rows: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in rows:
        found[name] = found.get(name, 0) + count
    return found


def rates(now: Sample, before: Sample | None) -> dict[str, Any]:
    """Returns the sample as JSON, with the rates per second since the sample before."""

    def each_second(count: int, earlier: int | None) -> float | None:
        if before is None or earlier is None or now.seconds <= before.seconds:
            return None
        return round((count - earlier) / (now.seconds - before.seconds), 1)

    past = before
    return {
        "log_bytes": now.log_bytes,
        "log_bytes_per_second": each_second(now.log_end, past.log_end if past else None),
        "pending": now.pending,
        "oldest": now.oldest,
        "topics": [
            {
                "topic": topic,
                "messages": count,
                "per_second": each_second(now.sent[topic], past.sent.get(topic, 0) if past else None),
            }
            for topic, count in sorted(now.messages.items())
        ],
        "groups": [
            {
                "group": group,
                "topic": topic,
                "lag": lag,
                "per_second": each_second(
                    now.acknowledged[group, topic], past.acknowledged.get((group, topic), 0) if past else None
                ),
            }
            for (group, topic), lag in sorted(now.lag.items())
        ],
    }
