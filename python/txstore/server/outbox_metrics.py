"""Exports how many messages wait in the databases of a broker's producers.

In:     a broker's outboxes, which are counted at each scrape.
Out:    metric families.
Always: a database that cannot be read has no sample, and a line in the log; all others have theirs.
"""

from collections.abc import Callable, Iterator
from typing import Any

from txstore.metrics.families import outbox_families
from txstore.metrics.prometheus import exported
from txstore.producer.outbox import Outboxes

__all__ = ["outbox_exporter"]


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
        for family in outbox_families(self._outboxes):
            yield exported(self._families, family, {})
