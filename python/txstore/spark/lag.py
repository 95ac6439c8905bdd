"""Lag: how far a query is from the end of its store's log.

In:     offsets of the stream, in the progress that Spark reports after each micro-batch.
Out:    bytes, seconds and rows; gauges for Prometheus.
Always: bytes and seconds compare two offsets: where the micro-batch ended, and where the log ended when it was planned.
        Seconds are those between the store times of the last records before the two. Rows are an estimate: the bytes,
        at the rate of rows of the last micro-batch that was not empty. Over the network only the rows are known.
Not here: a query that hangs reports no progress, so the time since the last report is for its user to watch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
        StreamingQueryProgress,
    )

__all__ = ["StreamLag", "StreamLagListener", "position"]

Offset = Mapping[str, Any]


@dataclass(frozen=True)
class StreamLag:
    """How far a source of a query is from the end of its log."""

    source: int
    """Which of the query's sources, from 0."""
    bytes: int | None
    """None: the source reads over the network, where only rows are known."""
    seconds: float | None
    """None: no record was read yet, retention has removed the last one that was read, or the network is read."""
    rows: int | None
    """None: no micro-batch had a row yet."""
    rows_per_byte: float | None = None
    """The rate of this micro-batch; None if it was empty."""

    @classmethod
    def between(cls, end: Offset, latest: Offset, source: int = 0) -> StreamLag:
        """Returns the lag of a query that has read up to `end`, in a log that ends at `latest`.

        That of several stores is the bytes of all, and the seconds of the one that is the most late. That of brokers is
        the rows of their queues.
        """
        if "queues" in latest:
            read = _queues(end)
            return cls(source, None, None, sum(max(0, at - read.get(one, at)) for one, at in _queues(latest).items()))
        if "stores" in latest:
            ends = end.get("stores", {})
            each = [cls.between(ends[path], of, source) for path, of in latest["stores"].items() if path in ends]
            most = max((one.seconds for one in each if one.seconds is not None), default=None)
            total = sum(one.bytes or 0 for one in each)
            return cls(source, total, most, None if total else 0)
        lag = max(0, latest["phy"] - end["phy"])
        times = [offset["last"]["ms"] for offset in (end, latest) if offset.get("last")]
        seconds = max(0.0, (times[1] - times[0]) / 1000) if len(times) == 2 else None
        return cls(source, lag, seconds if lag else 0.0, None if lag else 0)

    @classmethod
    def of(cls, progress: StreamingQueryProgress) -> list[StreamLag]:
        """Returns the lags of the txstore sources in a progress. Empty in Spark 4.0 and 4.1: they do not ask for it."""
        found = (_of_source(number, source) for number, source in enumerate(progress.sources))
        return [lag for lag in found if lag is not None]

    def to_json(self, batch_bytes: int) -> dict[str, Any]:
        """Returns what the offsets of a micro-batch of that many bytes tell, as JSON values."""
        return {"bytes": self.bytes, "seconds": self.seconds, "batch_bytes": batch_bytes}

    def estimated(self, rows_per_byte: float | None) -> StreamLag:
        """Returns the lag with its rows, at that rate if they are not known."""
        if self.rows is not None or self.bytes is None or rows_per_byte is None:
            return self
        return replace(self, rows=round(self.bytes * rows_per_byte))


def _of_source(number: int, source: SourceProgress) -> StreamLag | None:
    start, end, latest = (_offset(text) for text in (source.startOffset, source.endOffset, source.latestOffset))
    if end is None or latest is None:
        return None
    lag = StreamLag.between(end, latest, number)
    if lag.bytes is None:
        return lag
    # The first progress of a query has no start.
    of_batch = latest.get("lag", {}).get("batch_bytes", 0)
    read = position(end) - position(start) if start is not None else of_batch
    rate = source.numInputRows / read if read > 0 and source.numInputRows else None
    return replace(lag, rows_per_byte=rate).estimated(rate)


def _offset(text: str | None) -> Offset | None:
    """Returns an offset of this source; None for another source's, or for none."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    is_ours = isinstance(found, dict) and "v" in found
    return found if is_ours and (isinstance(found.get("phy"), int) or "stores" in found or "queues" in found) else None


def _queues(offset: Offset) -> dict[tuple[str, str, str], int]:
    """Returns the queue offsets of a stream over the network, by topic, broker and queue."""
    return {
        (topic, broker, queue): at
        for topic, brokers in offset.get("queues", {}).items()
        for broker, queues in brokers.items()
        for queue, at in queues.items()
    }


def position(offset: Offset) -> int:
    """Returns the bytes of all logs before an offset."""
    each = offset["stores"].values() if "stores" in offset else [offset]
    return sum(int(one["phy"]) for one in each)


class StreamLagListener(StreamingQueryListener):
    """Publishes the lag of every query that reads a store: `spark.streams.addListener(StreamLagListener())`.

    The gauges are txstore_stream_lag_bytes, _seconds and _rows, with the query's name (or id) and the source's number
    as labels, in `registry` or prometheus-client's own. A query that ends takes its gauges with it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Gauge
        except ModuleNotFoundError as error:
            text = "prometheus-client is missing: pip install 'txstore[spark,serve]'"
            raise ModuleNotFoundError(text, name=error.name) from None
        labels, used = ("query", "source"), REGISTRY if registry is None else registry
        bytes_ = "Bytes of the log that the query has not read yet."
        seconds = "Store time from the last record that was read to the last one of the log."
        rows = "Rows that the query has not read yet, estimated by its last micro-batch."
        self._bytes = Gauge("txstore_stream_lag_bytes", bytes_, labels, registry=used)
        self._seconds = Gauge("txstore_stream_lag_seconds", seconds, labels, registry=used)
        self._rows = Gauge("txstore_stream_lag_rows", rows, labels, registry=used)
        # By run of a query: the label values of its gauges, each with the last rate of rows.
        self._runs: dict[str, dict[tuple[str, str], float | None]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing: a query has a lag when its first micro-batch is done."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Publishes the lag after a micro-batch."""
        progress = event.progress
        known = self._runs.setdefault(str(progress.runId), {})
        for lag in StreamLag.of(progress):
            labels = (progress.name or str(progress.id), str(lag.source))
            rate = known[labels] = lag.rows_per_byte or known.get(labels)
            values = lag.bytes, lag.seconds, lag.estimated(rate).rows
            for gauge, value in zip((self._bytes, self._seconds, self._rows), values, strict=True):
                if value is not None:
                    gauge.labels(*labels).set(value)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Removes the gauges of a query that has ended."""
        for labels in self._runs.pop(str(event.runId), {}):
            for gauge in (self._bytes, self._seconds, self._rows):
                gauge.remove(*labels)
