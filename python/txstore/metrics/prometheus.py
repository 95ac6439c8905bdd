"""Exports metric families to prometheus-client.

In:     families.
Out:    what a registry collects.
Always: loads prometheus-client only when it is used, because the core needs no other package.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from txstore.broker import EmbeddedBroker
from txstore.errors import InvalidOptionError, StoreClosedError
from txstore.metrics.families import Family, common_labels, families

__all__ = ["Collector", "exported"]


class Collector:
    """The metrics of a broker in this process: `prometheus_client.REGISTRY.register(Collector(broker))`.

    Names and labels are those of `txstore serve`'s /metrics. A closed broker has no samples. Raises InvalidOptionError
    without prometheus-client.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        try:
            from prometheus_client import core
        except ModuleNotFoundError:
            raise InvalidOptionError(
                "metrics need prometheus_client, which is not installed\nhint: pip install 'txstore[serve]'",
                option="broker",
            ) from None
        self._core = core
        self._broker = broker
        self._common = common_labels(broker)

    def describe(self) -> Iterator[Any]:
        """Yields nothing, so that registering it does not read the store."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """Yields the families of prometheus-client."""
        if self._broker.closed:
            return
        try:
            for family in families(self._broker):
                yield exported(self._core, family, self._common)
        except StoreClosedError:
            return  # It was closed meanwhile.


def exported(core: Any, family: Family, common: Mapping[str, str]) -> Any:
    """Returns a family of prometheus-client. `core` is `prometheus_client.core`; `common`: labels of all metrics."""
    kinds = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    made = kinds[family.kind](family.name, family.text, labels=[*common, *family.labels])
    for key, value in family.rows:
        made.add_metric([*common.values(), *key], value)
    for key, buckets, total in family.histograms:
        count, added = 0, []
        for bound, more in buckets:
            count += more
            added.append(("+Inf" if bound is None else f"{float(bound)}", count))
        made.add_metric([*common.values(), *key], added, total)
    return made
