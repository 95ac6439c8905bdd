"""The metric families of a store: transactions, lag, size, and rows that wait in databases.

In:     an open broker, which counts.
Out:    families, computed at each call.
Always: RocketMQ 5's names and labels if it has the metric. The number of label sets is bounded, and the rest is summed
        up as one, so that names invented by clients cannot exhaust memory.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from txstore._native import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic
from txstore.broker import EmbeddedBroker
from txstore.errors import DiskFullError, StorePoisonedError, TxStoreError
from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import Outboxes, Waiting

__all__ = [
    "OTHER",
    "Bucket",
    "Family",
    "Kind",
    "common_labels",
    "ended",
    "families",
    "flag",
    "outbox_families",
    "pending",
    "read",
    "stored",
    "sums",
]

_log = logging.getLogger("txstore.database.outbox")

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Rows: TypeAlias = Iterable[tuple[Sequence[str], float]]
Bucket: TypeAlias = tuple[int | None, int]
"""An upper bound, None for infinity, and a count that is not cumulative."""

OTHER = "(other)"
"""The label value for the rest beyond the bound. It is not a valid name of a topic or group."""
_ROWS_MAX = 10_000
_TOPIC = ("topic",)
_FAILURES = ((DiskFullError, "disk_full"), (StorePoisonedError, "poisoned"))
_REASONS = ("disk_full", "poisoned", "other")
_ENDS = "committed rolled_back discarded repeated contrary late wrong_group not_found failed unknown".split()
_CHECKS = {
    "sent": "checks_sent",
    "commit": "checks_committed",
    "rollback": "checks_rolled_back",
    "unknown": "checks_unknown",
    "no_answer": "checks_unanswered",
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples."""

    kind: Kind
    name: str
    """Without the suffix `_total` of a counter."""
    text: str
    """What it counts."""
    labels: Sequence[str] = ()
    """The names of its own labels, without those that all metrics have."""
    rows: Rows = ()
    """(label values, value)."""
    histograms: Iterable[tuple[Sequence[str], Sequence[Bucket], float]] = ()
    """(label values, buckets, sum), of a histogram."""


def common_labels(broker: EmbeddedBroker) -> dict[str, str]:
    """Returns the labels that all metrics of a store have."""
    config = broker.config
    return {"cluster": config.cluster_name, "node_type": "broker", "node_id": config.broker_name}


def families(broker: EmbeddedBroker) -> Iterator[Family]:
    """Yields the families of a broker. Raises StoreClosedError, StoreForkedError."""
    counts = broker.store.transaction_counts()[0]
    yield from ended(broker, counts)
    yield from pending(broker)
    yield from stored(broker, failure_of(broker))
    yield from outbox_families(broker.outboxes)


def failure_of(broker: EmbeddedBroker) -> TxStoreError | None:
    """Returns the error for which a store accepts no messages now; None also for one that is open read-only."""
    if broker.read_only:
        return None
    try:
        broker.store.check_room()
    except TxStoreError as error:
        return error
    return None


def ended(broker: EmbeddedBroker, counters: Mapping[str, int]) -> Iterator[Family]:
    """Yields how transactions ended. `counters`: the engine's, by name."""
    topics = broker.store.transaction_counts()[1]
    text = "Transactions that were committed."
    yield Family("counter", "rocketmq_commit_messages", text, _TOPIC, [((one.topic,), one.committed) for one in topics])
    text = "Transactions that were rolled back."
    rows = [((one.topic,), one.rolled_back) for one in topics]
    yield Family("counter", "rocketmq_rollback_messages", text, _TOPIC, rows)
    text = "Seconds from storing a half message to its commit."
    times = [
        (
            (one.topic,),
            [(None if bound is None else bound // 1000, count) for bound, count in one.latency],
            one.latency_ms / 1000,
        )
        for one in topics
    ]
    yield Family("histogram", "rocketmq_finish_message_latency", text, _TOPIC, histograms=times)
    text = "Transactions that were discarded."
    rows = [((one.topic,), one.discarded) for one in topics]
    yield Family("counter", "txstore_discarded_messages", text, _TOPIC, rows)
    text = "Ends of transactions, by result."
    ends = [((end,), counters[f"ends_{end}"]) for end in _ENDS if f"ends_{end}" in counters]
    yield Family("counter", "txstore_transaction_ends", text, ("result",), ends)
    text = "Checks of transactions, sent and by result."
    checks = [((result,), counters[name]) for result, name in _CHECKS.items()]
    yield Family("counter", "txstore_transaction_checks", text, ("result",), checks)


def pending(broker: EmbeddedBroker) -> Iterator[Family]:
    """Yields the pending transactions."""
    found = broker.store.pending()
    rows = sums(((topic,), count) for topic, _, count, _ in found)
    yield Family("gauge", "rocketmq_half_messages", "Pending transactions.", _TOPIC, rows)
    rows = sums(((group,), count) for _, group, count, _ in found)
    text = "Pending transactions, by producer group."
    yield Family("gauge", "txstore_pending_transactions", text, ("producer_group",), rows)
    oldest = max((age_ms for _, _, _, age_ms in found), default=0)
    text = "Age of the oldest pending transaction; 0 if none is pending."
    yield Family("gauge", "txstore_oldest_pending_seconds", text, (), [((), max(0, oldest) / 1000)])


def stored(broker: EmbeddedBroker, failure: TxStoreError | None) -> Iterator[Family]:
    """Yields the size of the log, and the lag of the groups. `failure`: why the store accepts no messages."""
    found = next((reason for kind, reason in _FAILURES if isinstance(failure, kind)), "other")
    reasons = [((reason,), int(failure is not None and reason == found)) for reason in _REASONS]
    text = "1 if the store accepts no messages, for this reason."
    yield Family("gauge", "txstore_store_unavailable", text, ("reason",), reasons)
    stat = broker.stat()
    size = stat.max_physical_offset - stat.min_physical_offset
    labels: tuple[str, ...] = ("storage_type", "storage_medium")
    yield Family("gauge", "rocketmq_storage_size", "Bytes of the commit log.", labels, [(("local", "disk"), size)])
    lag = broker.lag_by_group().items()
    rows = sums((read(row.topic, group), row.lag) for group, of_group in lag for row in of_group)
    labels = ("topic", "consumer_group", "is_retry", "is_system")
    text = "Messages that a group has not acknowledged."
    yield Family("gauge", "rocketmq_consumer_lag_messages", text, labels, rows)


def outbox_families(outboxes: Outboxes) -> Iterator[Family]:
    """Yields how many messages wait in the databases of a broker's producers; nothing without databases.

    A database that cannot be read has no sample, and a line in the log; all others have theirs.
    """
    found: list[tuple[str, Waiting]] = []
    for forwarder in outboxes.forwarders():
        try:
            found.append((forwarder.name, forwarder.status()))
        except Exception as error:
            _log.warning("the rows of %s could not be counted: %s", forwarder.name, error_text(error))
    if not found:
        return
    rows = [((name,), waiting.rows) for name, waiting in found]
    yield Family("gauge", "txstore_outbox_rows", "Messages that wait in a database.", ("database",), rows)
    text = "Age of the oldest message that waits in a database; 0 if none waits."
    ages = [((name,), waiting.oldest_seconds) for name, waiting in found]
    yield Family("gauge", "txstore_outbox_oldest_seconds", text, ("database",), ages)


def read(topic: str, group: str) -> tuple[str, ...]:
    """Returns the label values for a group's reads: topic, group, is_retry, is_system."""
    system = is_system_topic(topic) or group.startswith(SYSTEM_GROUP_PREFIX)
    return topic, group, flag(topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))), flag(system)


def flag(value: bool) -> str:
    """Returns a label value."""
    return "true" if value else "false"


def sums(rows: Iterable[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], int]]:
    """Sums the rows of each label set. Beyond 10,000 label sets, returns the largest ones and the rest as one."""
    found: dict[tuple[str, ...], int] = {}
    for key, value in rows:
        found[key] = found.get(key, 0) + value
    if len(found) <= _ROWS_MAX:
        return list(found.items())
    largest = sorted(found.items(), key=lambda row: row[1], reverse=True)
    kept, rest = largest[: _ROWS_MAX - 1], largest[_ROWS_MAX - 1 :]
    return [*kept, ((OTHER,) * len(rest[0][0]), sum(value for _, value in rest))]
