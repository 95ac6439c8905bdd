"""Metrics: a server's health and figures over HTTP, for Prometheus and for whoever restarts it.

In: GET /healthz, /readyz, /metrics. Out: 200 or 503, and figures. Always: a listener of its own, so that looking never
stands in a client's way; RocketMQ 5's names where it has the figure. Not here: counting, which the engine does.
"""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from txstore.errors import InvalidOptionError, StoreIOError, TxStoreError

if TYPE_CHECKING:
    from txstore.remoting.server.server import Server

__all__ = ["MetricsServer"]

_log = logging.getLogger("txstore.remoting")

# Ours → (the name that it is exported under, what it says). Those of RocketMQ 5 where it has them.
_COUNTERS = {
    "messages_in": ("rocketmq_messages_in", "Messages stored, half messages not among them."),
    "messages_out": ("rocketmq_messages_out", "Messages handed to consumers."),
    "bytes_in": ("rocketmq_throughput_in", "Bytes of the bodies stored."),
    "bytes_out": ("rocketmq_throughput_out", "Bytes of the records handed to consumers."),
    "ends_committed": ("rocketmq_commit_messages", "Transactions that clients committed."),
    "ends_rolled_back": ("rocketmq_rollback_messages", "Transactions that clients rolled back."),
    "halves_in": ("txstore_halves", "Half messages stored."),
    "ends_unknown": ("txstore_ends_unknown", "Ends that left it to a check."),
    "ends_repeated": ("txstore_ends_repeated", "Ends that said again what was decided."),
    "ends_refused": ("txstore_ends_refused", "Ends that were refused: contrary, late, forged."),
    "ends_from_check": ("txstore_ends_from_check", "Ends that answered a check."),
    "connections_accepted": ("txstore_connections_accepted", "Connections that were accepted."),
    "connections_refused": ("txstore_connections_refused", "Connections beyond connections_max."),
    "connections_dropped": ("txstore_connections_dropped", "Connections closed for what they sent or did not read."),
    "frames_malformed": ("txstore_frames_malformed", "Frames that were none."),
    "requests_refused": ("txstore_requests_refused", "Requests answered with an error."),
}
_GAUGES = {
    "producers": ("rocketmq_producer_connections", "Producer groups by connection."),
    "consumers": ("rocketmq_consumer_connections", "Consumers that are connected."),
    "connections": ("txstore_connections", "Connections that are open."),
    "pulls_held": ("txstore_pulls_held", "Pulls that wait for messages."),
    "requests_waiting": ("txstore_requests_waiting", "Requests that wait to be decided."),
}


class MetricsServer:
    """Answers over HTTP until it is closed. Raises InvalidOptionError, StoreIOError (the address)."""

    def __init__(self, server: "Server", address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise InvalidOptionError(f"metrics {address!r} is no address\nhint: 127.0.0.1:9100", option="metrics")
        try:
            self._http = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler_of(server))
        except (OSError, OverflowError) as error:
            raise StoreIOError(f"cannot listen at {address}: {error}\nhint: give another address") from error
        self._http.daemon_threads = True
        bound = self._http.server_address
        self.address = f"{host}:{bound[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="txstore-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _handler_of(server: "Server") -> type[BaseHTTPRequestHandler]:
    exporter = _exporter(server)

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._say(200, b"alive\n")
            elif self.path == "/readyz":
                self._say(200, b"ready\n") if server.ready else self._say(503, b"not ready\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._say(404, b"there are /healthz, /readyz and /metrics\n")
            elif exporter is None:
                self._say(501, b"prometheus-client is missing: pip install 'txstore[serve]'\n")
            else:
                self._metrics()

        def _metrics(self) -> None:
            assert exporter is not None
            try:
                self._say(200, exporter(), "text/plain; version=0.0.4; charset=utf-8")
            except TxStoreError as error:
                self._say(503, f"{error}\n".encode())

        def _say(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # The name of the class above.
            _log.debug(format, *args)

    return Handler


def _exporter(server: "Server") -> Any:
    """What makes the text of /metrics; None without prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ModuleNotFoundError:
        return None
    config = server.broker.config
    names, common = ["cluster", "node_type", "node_id"], [config.cluster_name, "broker", config.broker_name]

    class Collector:
        """Asks the server whenever somebody looks."""

        def collect(self) -> Iterator[Any]:
            found = server.counters()
            for kinds, family in ((_COUNTERS, CounterMetricFamily), (_GAUGES, GaugeMetricFamily)):
                for counter, (name, help_text) in kinds.items():
                    metric = family(name, help_text, labels=names)
                    metric.add_metric(common, found[counter])
                    yield metric
            yield from self._pending()
            yield from self._store()

        def _pending(self) -> Iterator[Any]:
            half = GaugeMetricFamily("rocketmq_half_messages", "Transactions that pend.", labels=names)
            half.add_metric(common, server.broker.stat().pending_transactions)
            yield half
            oldest = GaugeMetricFamily(
                "txstore_oldest_pending_seconds", "Age of the transaction that pends longest.", labels=names
            )
            pending = server.broker.transactions(limit=1)
            oldest.add_metric(common, pending[0].age.total_seconds() if pending else 0)
            yield oldest

        def _store(self) -> Iterator[Any]:
            stat = server.broker.stat()
            size = GaugeMetricFamily("rocketmq_storage_size", "Bytes of the commit log.", labels=names)
            size.add_metric(common, stat.max_physical_offset - stat.min_physical_offset)
            yield size
            lag = GaugeMetricFamily(
                "rocketmq_consumer_lag_messages",
                "Messages that a group has not acknowledged.",
                labels=[*names, "consumer_group", "topic", "is_retry"],
            )
            for group in server.broker.groups():
                by_topic: dict[str, int] = {}
                for row in server.broker.lag(group):
                    by_topic[row.topic] = by_topic.get(row.topic, 0) + row.lag
                for topic, behind in by_topic.items():
                    lag.add_metric([*common, group, topic, str(topic.startswith("%RETRY%")).lower()], behind)
            yield lag

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return lambda: generate_latest(registry)
