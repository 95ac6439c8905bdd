"""Exports how many messages wait in the databases of a broker's producers.

In:     a broker's outboxes, which are counted at each scrape.
Out:    metric families.
Always: a database that cannot be read has no sample, and a line in the log; all others have theirs.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from txstore.producer.local_transaction import error_text
from txstore.producer.outbox import Outboxes, Waiting

__all__ = ["outbox_exporter", "outbox_families"]

_log = logging.getLogger("txstore.database.outbox")


def outbox_exporter(outboxes: Outboxes) -> Callable[[], bytes] | None:
    """Returns the function that creates the text of /metrics; None if prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ModuleNotFoundError:
        return None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(outboxes))
    return lambda: generate_latest(registry)


class _Collector:
    """Collects the metrics of outboxes alone."""

    def __init__(self, outboxes: Outboxes) -> None:
        from prometheus_client import core

        self._families = core
        self._outboxes = outboxes

    def collect(self) -> Iterator[Any]:
        return outbox_families(self._families, self._outboxes, {})


def outbox_families(families: Any, outboxes: Outboxes, common: Mapping[str, str]) -> Iterator[Any]:
    """Yields the metric families of outboxes, with the labels that all metrics have in common; none without outboxes.

    `families` is `prometheus_client.core`.
    """
    found: list[tuple[str, Waiting]] = []
    for forwarder in outboxes.forwarders():
        try:
            found.append((forwarder.name, forwarder.status()))
        except Exception as error:
            _log.warning("the rows of %s could not be counted: %s", forwarder.name, error_text(error))
    if not found:
        return
    labels = [*common, "database"]
    rows = families.GaugeMetricFamily("txstore_outbox_rows", "Messages that wait in a database.", labels=labels)
    text = "Age of the oldest message that waits in a database; 0 if none waits."
    oldest = families.GaugeMetricFamily("txstore_outbox_oldest_seconds", text, labels=labels)
    for name, waiting in found:
        rows.add_metric([*common.values(), name], waiting.rows)
        oldest.add_metric([*common.values(), name], waiting.oldest_seconds)
    yield rows
    yield oldest
