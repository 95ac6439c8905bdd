"""Exports a server's part in replication.

In:     a status, and what slaves of RocketMQ lack.
Out:    metric families: of a source with one sample for each of its replicas and slaves, of a replica with its own.
Always: the number of samples is bounded by the number of replicas and slaves.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from txstore.remoting.replication import ReplicationStatus

__all__ = ["replica_families"]


class _Row(NamedTuple):
    connected: bool
    lag_bytes: int
    lag_seconds: float


def _rows(status: ReplicationStatus) -> list[tuple[str, _Row]]:
    """Returns the replicas that the server knows, by name. Of a replica before its first answer: none."""
    if status.role == "source":
        return [(one.name, _Row(one.connected, one.lag_bytes, one.lag.total_seconds())) for one in status.replicas]
    if status.lag_bytes is None or status.lag is None:
        return []
    return [(status.name, _Row(status.following, status.lag_bytes, status.lag.total_seconds()))]


def replica_families(
    families: Any, status: ReplicationStatus, slave_lags: Mapping[str, int], common: Mapping[str, str]
) -> Iterator[Any]:
    """Yields the metric families of a source or of a replica, with the labels that all metrics have in common.

    `families` is `prometheus_client.core`; `slave_lags`: the bytes that each slave of RocketMQ lacks, by its address.
    """

    def gauge(name: str, text: str, values: Iterable[tuple[str, float]], *labels: str) -> Any:
        family = families.GaugeMetricFamily(name, text, labels=[*common, *labels])
        for key, value in values:
            family.add_metric([*common.values(), *(key for _ in labels)], value)
        return family

    def one(name: str, text: str, value: float) -> Any:
        return gauge(name, text, [("", value)])

    rows = _rows(status)
    text = "1 for what this server is: a source, a replica, or a source that another node has replaced."
    roles = [(role, float(role == status.role)) for role in ("source", "replica", "fenced")]
    yield gauge("txstore_replication_role", text, roles, "role")
    yield one("txstore_copies_required", "Copies that a write needs, with this server's own.", status.required)
    text = "1 if messages and ends of transactions are accepted: it is a source, and enough replicas are connected."
    yield one("txstore_writes_accepted", text, status.accepts_writes)
    text = "1 if the replica and its source are connected."
    yield gauge("txstore_replica_connected", text, [(name, row.connected) for name, row in rows], "replica")
    text = "Bytes of the source's log that the replica lacks."
    yield gauge("txstore_replica_lag_bytes", text, [(name, row.lag_bytes) for name, row in rows], "replica")
    text = "Of a source, the age of the first record that the replica lacks; of a replica, since when it lacks some."
    yield gauge("txstore_replica_lag_seconds", text, [(name, row.lag_seconds) for name, row in rows], "replica")
    text = "Bytes of the log that a connected slave of RocketMQ lacks, by its last report."
    yield gauge("txstore_slave_lag_bytes", text, slave_lags.items(), "slave")
