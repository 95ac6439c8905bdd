"""Exports the metrics of a server and its store to Prometheus.

In:     a server, whose engine does the counting.
Out:    metric families, computed at each scrape.
Always: RocketMQ 5's names and labels if it has the metric. The number of label sets is bounded, and the rest is summed
        up as one, so that names invented by clients cannot exhaust memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from txstore._native import SYSTEM_GROUP_PREFIX, RemotingServer, is_system_topic
from txstore.broker import EmbeddedBroker
from txstore.errors import TxStoreError
from txstore.metrics.families import (
    Bucket,
    Family,
    common_labels,
    ended,
    flag,
    outbox_families,
    pending,
    read,
    stored,
    sums,
)
from txstore.metrics.prometheus import exported
from txstore.server.clients import Clients
from txstore.server.replica_metrics import replica_families
from txstore.server.replicas import Nodes

__all__ = ["MeasuredServer", "exporter"]

Rows = Iterable[tuple[Sequence[str], float]]

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
        self._common = common_labels(server.broker)

    def collect(self) -> Iterator[Any]:
        counters = self._server.counters()
        for name, (metric, text) in _COUNTERS.items():
            yield self._counter(metric, text, [((), counters[name])])
        for name, (metric, text) in _GAUGES.items():
            yield self._gauge(metric, text, [((), counters[name])])
        yield from self._connected()
        yield from self._sent()
        yield from self._handed_out()
        broker = self._server.broker
        for family in (
            *ended(broker, counters),
            *pending(broker),
            *stored(broker, self._server.failure()),
            *outbox_families(broker.outboxes),
        ):
            yield exported(self._families, family, self._common)
        nodes = self._server.nodes
        yield from replica_families(self._families, nodes.status(), nodes.slave_lags(), self._common)

    # Messages and connections

    def _sent(self) -> Iterator[Any]:
        labels = ("topic", "message_type", "is_system")
        rows = [
            ((topic, kind, flag(is_system_topic(topic))), messages, size, buckets)
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
            (read(topic, group), messages, size) for topic, group, messages, size in self._server.native.handed_out()
        ]
        text = "Messages handed to consumers."
        yield self._counter("rocketmq_messages_out", text, [(key, messages) for key, messages, _ in rows], labels)
        text = "Bytes of the records handed to consumers."
        yield self._counter("rocketmq_throughput_out", text, [(key, size) for key, _, size in rows], labels)

    def _connected(self) -> Iterator[Any]:
        producers, consumers = self._server.clients.connected()
        rows = sums(((*_client(language, version), "remoting"), 1) for language, version in producers)
        labels: tuple[str, ...] = ("language", "version", "protocol_type")
        yield self._gauge("rocketmq_producer_connections", "Producer groups by connection.", rows, labels)
        rows = sums(
            ((group, *_client(language, version), mode, "remoting", flag(group.startswith(SYSTEM_GROUP_PREFIX))), 1)
            for group, language, version, mode in consumers
        )
        labels = ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system")
        yield self._gauge("rocketmq_consumer_connections", "Consumers that are connected.", rows, labels)

    # Families

    def _counter(self, name: str, text: str, rows: Rows, labels: Sequence[str] = ()) -> Any:
        return exported(self._families, Family("counter", name, text, labels, rows), self._common)

    def _gauge(self, name: str, text: str, rows: Rows, labels: Sequence[str] = ()) -> Any:
        return exported(self._families, Family("gauge", name, text, labels, rows), self._common)

    def _histogram(
        self,
        name: str,
        text: str,
        rows: Iterable[tuple[Sequence[str], Sequence[Bucket], float]],
        labels: Sequence[str],
    ) -> Any:
        return exported(self._families, Family("histogram", name, text, labels, histograms=rows), self._common)


def _client(language: str, version: int) -> tuple[str, str]:
    """Returns a client's language and version as RocketMQ's metrics write them."""
    if version < _FIRST_VERSION:
        return language.lower(), str(version)
    digits = 450 + (version - _FIRST_VERSION + 1) // 2
    return language.lower(), f"v{digits // 100}_{digits // 10 % 10}_{digits % 10}" + (
        "" if version % 2 else "_snapshot"
    )
