"""Metrics of an open store, for programs that have it in their own process, under the server's names.

In:     an `EmbeddedBroker`.
Out:    `Collector`, for a registry of prometheus-client.
Not here: connections and clients, which only a server has (`txstore.server`); OpenTelemetry's instruments
        (`txstore.otel`).
"""

from txstore.metrics.prometheus import Collector

__all__ = ["Collector"]
