"""Observes a broker's metrics by OpenTelemetry, under the server's names.

In:     an open broker in this process.
Out:    observable counters and gauges, read when the program's meter provider collects.
Always: a closed broker has no observations. The store is read once for each collection.
Not here: the metrics (`txstore.metrics`). OpenTelemetry has no observable histogram, so the time from half message to
        commit is its count and its sum.
"""

import threading
import time
from collections.abc import Callable, Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from txstore._native import __version__
from txstore.broker import EmbeddedBroker
from txstore.errors import StoreClosedError
from txstore.metrics.families import Family, common_labels, families

__all__ = ["observe"]

_AGE_SECONDS = 0.5  # All instruments of one collection use the same families.
_OUTBOX = (
    Family("gauge", "txstore_outbox_rows", "Messages that wait in a database."),
    Family("gauge", "txstore_outbox_oldest_seconds", "Age of the oldest message that waits in a database."),
)


def observe(broker: EmbeddedBroker, *, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Has a meter provider collect the broker's metrics. `meter_provider`: None for the program's.

    Names and labels are those of `txstore serve`'s /metrics, without `_total`, which exporters for Prometheus append.
    Raises StoreClosedError.
    """
    seen = _Seen(broker)
    meter = metrics.get_meter("txstore", __version__, meter_provider)
    known = {family.name: family for family in (*_OUTBOX, *seen.families().values())}
    for family in known.values():
        if family.kind == "histogram":
            for suffix in ("count", "sum"):
                name = f"{family.name}_{suffix}"
                meter.create_observable_counter(name, [seen.reader(family.name, suffix)], description=family.text)
        elif family.kind == "counter":
            meter.create_observable_counter(family.name, [seen.reader(family.name)], description=family.text)
        else:
            meter.create_observable_gauge(family.name, [seen.reader(family.name)], description=family.text)


class _Seen:
    """The families of a moment. Thread-safe."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._common = common_labels(broker)
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._families: dict[str, Family] = {}

    def families(self) -> dict[str, Family]:
        """Reads the store. Raises StoreClosedError."""
        return {family.name: family for family in families(self._broker)}

    def reader(self, name: str, suffix: str = "") -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Returns the callback of an instrument. `suffix`: which part of a histogram."""

        def read(_: CallbackOptions) -> Iterable[Observation]:
            family = self._now().get(name)
            if family is None:
                return []
            labels = family.labels
            if suffix:
                return [
                    Observation(
                        sum(count for _, count in buckets) if suffix == "count" else total, self._of(labels, key)
                    )
                    for key, buckets, total in family.histograms
                ]
            return [Observation(value, self._of(labels, key)) for key, value in family.rows]

        return read

    def _of(self, labels: Iterable[str], key: Iterable[str]) -> dict[str, str]:
        return self._common | dict(zip(labels, key, strict=True))

    def _now(self) -> dict[str, Family]:
        with self._lock:
            if time.monotonic() > self._at + _AGE_SECONDS:
                try:
                    self._families = {} if self._broker.closed else self.families()
                except StoreClosedError:
                    self._families = {}
                self._at = time.monotonic()
            return self._families
