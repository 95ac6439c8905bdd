"""Exports the metrics of a server and its store to Prometheus.

In:     a server, whose engine does the counting.
Out:    metric families, computed at each scrape.
Always: RocketMQ 5's names and labels if it has the metric. The number of label sets is bounded, and the rest is summed
        up as one, so that names invented by clients cannot exhaust memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from txstore._native import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, RemotingServer, is_system_topic
from txstore.broker import EmbeddedBroker
from txstore.errors import DiskFullError, StorePoisonedError, TxStoreError
from txstore.server.clients import Clients
from txstore.server.outbox_metrics import outbox_families
from txstore.server.replica_metrics import replica_families
from txstore.server.replicas import Nodes

__all__ = ["MeasuredServer", "exporter"]

Rows = Iterable[tuple[Sequence[str], float]]

OTHER = "(other)"
"""The label value for the rest beyond the bound. It is not a valid name of a topic or group."""
_ROWS_MAX = 10_000
_TOPIC = ("topic",)
_FIRST_VERSION = 313  # RocketMQ's number of 4.5.0. Each later release takes two numbers: a snapshot, then the release.

# The engine's name → (the exported name, its description).
_COUNTERS = {
    "connections_accepted": ("txstore_connections_accepted", "Connections that were accepted."),
    "connections_refused": ("txstore_connections_refused", "Connections beyond connections_max."),
    "connections_dropped": (
        "txstore_connections_dropped",
        "Connections closed because of what they sent or did not read.",
    ),
    "connections_over_budget": (
        "txstore_connections_over_budget",
        "Dropped connections that held more memory than their share.",
    ),
    "handshakes_failed": ("txstore_handshakes_failed", "Connections without the required TLS handshake."),
    "frames_malformed": ("txstore_frames_malformed", "Malformed frames received."),
    "requests_refused": ("txstore_requests_refused", "Requests answered with an error."),
    "requests_not_signed": ("txstore_requests_not_signed", "Requests without the signature of a known account."),
    "requests_not_allowed": ("txstore_requests_not_allowed", "Requests without permission."),
}
_GAUGES = {
    "connections": ("txstore_connections", "Connections that are open."),
    "grpc_clients": ("txstore_grpc_clients", "Clients of the gRPC protocol that are known."),
    "memory_held": (
        "txstore_memory_held_bytes",
        "Bytes of incomplete frames, unread responses and waiting requests.",
    ),
    "memory_uncounted": (
        "txstore_memory_uncounted_bytes",
        "Bytes that the process has taken since the server started, without those that clients hold.",
    ),
    "pulls_held": ("txstore_pulls_held", "Pulls that wait for messages."),
    "requests_waiting": ("txstore_requests_waiting", "Requests that wait for a thread."),
}
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


class MeasuredServer(Protocol):
    """The part of a `Server` that health and metrics are read from."""

    @property
    def broker(self) -> EmbeddedBroker: ...
    @property
    def clients(self) -> Clients: ...
    @property
    def native(self) -> RemotingServer: ...
    @property
    def nodes(self) -> Nodes: ...
    def counters(self) -> dict[str, int]: ...
    def failure(self) -> TxStoreError | None: ...


def exporter(server: MeasuredServer) -> Callable[[], bytes] | None:
    """Returns the function that creates the text of /metrics; None if prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ModuleNotFoundError:
        return None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server))
    return lambda: generate_latest(registry)


class _Collector:
    """Collects metrics from the server, its broker and its store."""

    def __init__(self, server: MeasuredServer) -> None:
        from prometheus_client import core

        self._families = core
        self._server = server
        config = server.broker.config
        self._common = {"cluster": config.cluster_name, "node_type": "broker", "node_id": config.broker_name}

    def collect(self) -> Iterator[Any]:
        counters = self._server.counters()
        for name, (metric, text) in _COUNTERS.items():
            yield self._counter(metric, text, [((), counters[name])])
        for name, (metric, text) in _GAUGES.items():
            yield self._gauge(metric, text, [((), counters[name])])
        yield from self._connected()
        yield from self._sent()
        yield from self._handed_out()
        yield from self._ended(counters)
        yield from self._pending()
        yield from self._stored()
        yield from replica_families(self._families, self._server.nodes.status(), self._common)
        yield from outbox_families(self._families, self._server.broker.outboxes, self._common)

    # Messages and connections

    def _sent(self) -> Iterator[Any]:
        labels = ("topic", "message_type", "is_system")
        rows = [
            ((topic, kind, _flag(is_system_topic(topic))), messages, size, buckets)
            for topic, kind, messages, size, buckets in self._server.native.sent()
        ]
        text = "Messages that clients sent; half messages under their own topic, as message_type transaction."
        yield self._counter("rocketmq_messages_in", text, [(key, messages) for key, messages, _, _ in rows], labels)
        text = "Bytes of the records of messages that clients sent."
        yield self._counter("rocketmq_throughput_in", text, [(key, size) for key, _, size, _ in rows], labels)
        text = "Bytes of the record of a message that a client sent."
        sizes = [(key, buckets, size) for key, _, size, buckets in rows]
        yield self._histogram("rocketmq_message_size", text, sizes, labels)

    def _handed_out(self) -> Iterator[Any]:
        labels = ("topic", "consumer_group", "is_retry", "is_system")
        rows = [
            (_read(topic, group), messages, size) for topic, group, messages, size in self._server.native.handed_out()
        ]
        text = "Messages handed to consumers."
        yield self._counter("rocketmq_messages_out", text, [(key, messages) for key, messages, _ in rows], labels)
        text = "Bytes of the records handed to consumers."
        yield self._counter("rocketmq_throughput_out", text, [(key, size) for key, _, size in rows], labels)

    def _connected(self) -> Iterator[Any]:
        producers, consumers = self._server.clients.connected()
        rows = _sums(((*_client(language, version), "remoting"), 1) for language, version in producers)
        labels: tuple[str, ...] = ("language", "version", "protocol_type")
        yield self._gauge("rocketmq_producer_connections", "Producer groups by connection.", rows, labels)
        rows = _sums(
            ((group, *_client(language, version), mode, "remoting", _flag(group.startswith(SYSTEM_GROUP_PREFIX))), 1)
            for group, language, version, mode in consumers
        )
        labels = ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system")
        yield self._gauge("rocketmq_consumer_connections", "Consumers that are connected.", rows, labels)

    # Transactions

    def _ended(self, counters: Mapping[str, int]) -> Iterator[Any]:
        topics = self._server.broker.store.transaction_counts()[1]
        text = "Transactions that were committed."
        yield self._counter("rocketmq_commit_messages", text, [((one.topic,), one.committed) for one in topics], _TOPIC)
        text = "Transactions that were rolled back."
        rows = [((one.topic,), one.rolled_back) for one in topics]
        yield self._counter("rocketmq_rollback_messages", text, rows, _TOPIC)
        text = "Seconds from storing a half message to its commit."
        times = [
            (
                (one.topic,),
                [(None if bound is None else bound // 1000, count) for bound, count in one.latency],
                one.latency_ms / 1000,
            )
            for one in topics
        ]
        yield self._histogram("rocketmq_finish_message_latency", text, times, _TOPIC)
        text = "Transactions that were discarded."
        rows = [((one.topic,), one.discarded) for one in topics]
        yield self._counter("txstore_discarded_messages", text, rows, _TOPIC)
        text = "Ends of transactions, by result."
        ends = [((end,), counters[f"ends_{end}"]) for end in _ENDS]
        yield self._counter("txstore_transaction_ends", text, ends, ("result",))
        text = "Checks of transactions, sent and by result."
        checks = [((result,), counters[name]) for result, name in _CHECKS.items()]
        yield self._counter("txstore_transaction_checks", text, checks, ("result",))

    def _pending(self) -> Iterator[Any]:
        pending = self._server.broker.store.pending()
        rows = _sums(((topic,), count) for topic, _, count, _ in pending)
        yield self._gauge("rocketmq_half_messages", "Pending transactions.", rows, _TOPIC)
        rows = _sums(((group,), count) for _, group, count, _ in pending)
        text = "Pending transactions, by producer group."
        yield self._gauge("txstore_pending_transactions", text, rows, ("producer_group",))
        oldest = max((age_ms for _, _, _, age_ms in pending), default=0)
        text = "Age of the oldest pending transaction; 0 if none is pending."
        yield self._gauge("txstore_oldest_pending_seconds", text, [((), max(0, oldest) / 1000)])

    # The store

    def _stored(self) -> Iterator[Any]:
        failure = self._server.failure()
        found = next((reason for kind, reason in _FAILURES if isinstance(failure, kind)), "other")
        reasons = [((reason,), int(failure is not None and reason == found)) for reason in _REASONS]
        text = "1 if the store accepts no messages, for this reason."
        yield self._gauge("txstore_store_unavailable", text, reasons, ("reason",))
        broker = self._server.broker
        stat = broker.stat()
        size = stat.max_physical_offset - stat.min_physical_offset
        labels: tuple[str, ...] = ("storage_type", "storage_medium")
        yield self._gauge("rocketmq_storage_size", "Bytes of the commit log.", [(("local", "disk"), size)], labels)
        lag = broker.lag_by_group().items()
        rows = _sums((_read(row.topic, group), row.lag) for group, of_group in lag for row in of_group)
        labels = ("topic", "consumer_group", "is_retry", "is_system")
        text = "Messages that a group has not acknowledged."
        yield self._gauge("rocketmq_consumer_lag_messages", text, rows, labels)

    # Families

    def _counter(self, name: str, text: str, rows: Rows, labels: Sequence[str] = ()) -> Any:
        return self._filled(self._families.CounterMetricFamily, name, text, rows, labels)

    def _gauge(self, name: str, text: str, rows: Rows, labels: Sequence[str] = ()) -> Any:
        return self._filled(self._families.GaugeMetricFamily, name, text, rows, labels)

    def _filled(self, kind: Any, name: str, text: str, rows: Rows, labels: Sequence[str]) -> Any:
        family = kind(name, text, labels=[*self._common, *labels])
        for key, value in rows:
            family.add_metric([*self._common.values(), *key], value)
        return family

    def _histogram(
        self,
        name: str,
        text: str,
        rows: Iterable[tuple[Sequence[str], Sequence[tuple[int | None, int]], float]],
        labels: Sequence[str],
    ) -> Any:
        """Returns a histogram. `rows`: labels, buckets, sum. A bucket is (upper bound, count), not cumulative.

        The bound None means infinity.
        """
        family = self._families.HistogramMetricFamily(name, text, labels=[*self._common, *labels])
        for key, buckets, total in rows:
            count, added = 0, []
            for bound, more in buckets:
                count += more
                added.append(("+Inf" if bound is None else f"{float(bound)}", count))
            family.add_metric([*self._common.values(), *key], added, total)
        return family


def _read(topic: str, group: str) -> tuple[str, ...]:
    """Returns the label values for a group's reads: topic, group, is_retry, is_system."""
    system = is_system_topic(topic) or group.startswith(SYSTEM_GROUP_PREFIX)
    return topic, group, _flag(topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))), _flag(system)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _client(language: str, version: int) -> tuple[str, str]:
    """Returns a client's language and version as RocketMQ's metrics write them."""
    if version < _FIRST_VERSION:
        return language.lower(), str(version)
    digits = 450 + (version - _FIRST_VERSION + 1) // 2
    return language.lower(), f"v{digits // 100}_{digits // 10 % 10}_{digits % 10}" + (
        "" if version % 2 else "_snapshot"
    )


def _sums(rows: Iterable[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], int]]:
    """Sums the rows of each label set. Beyond 10,000 label sets, returns the largest ones and the rest as one."""
    found: dict[tuple[str, ...], int] = {}
    for key, value in rows:
        found[key] = found.get(key, 0) + value
    if len(found) <= _ROWS_MAX:
        return list(found.items())
    largest = sorted(found.items(), key=lambda row: row[1], reverse=True)
    kept, rest = largest[: _ROWS_MAX - 1], largest[_ROWS_MAX - 1 :]
    return [*kept, ((OTHER,) * len(rest[0][0]), sum(value for _, value in rest))]
