"""The replicas of a server, and its own part in replication: for routes, for operators and for metrics.

In:     what replicas tell of themselves, and what the engine knows of their copies.
Out:    addresses of all nodes by their ids in routes; statuses.
Always: a replica is in routes only while it is connected, and its source only while the replica follows it, as
        RocketMQ's name server lists brokers. So clients read from a replica as soon as the source is gone.
Not here: the copying (`replication`, `rust/src/server/copies.rs`).
"""

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta

from txstore._native import RemotingServer, StoreEpochs
from txstore.broker import EmbeddedBroker
from txstore.errors import TxStoreError
from txstore.remoting.replication import ReplicaStatus, ReplicationStatus
from txstore.server.epochs import Epochs
from txstore.server.replication import Replica

__all__ = ["Nodes"]

MASTER = "0"  # RocketMQ's id of a master. Replicas have 1 and above.


class Nodes:
    """What a server knows of itself and of the other nodes. Thread-safe."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        native: RemotingServer,
        replica: Callable[[], Replica | None],
        failure: Callable[[], TxStoreError | None],
        *,
        address: str | None,
        required: int,
        timeout: float,
        ack: str,
        slaves: Callable[[], dict[int, str]] = dict,
        slave_lags: Callable[[], dict[str, int]] = dict,
    ) -> None:
        """`address`: where clients reach this server. `replica`: what copies another server's store, if anything does.
        `timeout`: after how many seconds a silent replica does not count as connected. `slaves`: the addresses of
        RocketMQ's brokers that copy the log, by their ids; `slave_lags`: how many bytes each lacks, by its address.
        """
        self._broker, self._native = broker, native
        self._replica, self._failure, self._slaves = replica, failure, slaves
        self.slave_lags = slave_lags
        """Returns how many bytes of the log each slave of RocketMQ lacks, by its address."""
        self.own_address: str | None = address
        """Where clients reach this server."""
        self._required, self._ack = required, ack
        self._timeout = timedelta(seconds=timeout)
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}

    def note(self, name: str, address: str | None) -> None:
        """Notes at which address clients reach a replica."""
        known = {row[0] for row in self._native.replicas()}
        with self._lock:
            kept = {of: at for of, at in self._addresses.items() if of in known}
            self._addresses = kept if address is None else kept | {name: address}

    def addresses(self) -> dict[str, str]:
        """Returns the addresses of the nodes by their ids, as `BrokerData.brokerAddrs` has them."""
        own = {} if self.own_address is None else {MASTER: self.own_address}
        replica = self._replica()
        known = self._epochs()
        if known.role == "fenced":  # Its clients must not read what a rejoin cuts.
            return {} if known.source is None else {MASTER: known.source}
        if replica is None:
            connected = [one.address for one in self.replicas() if one.connected and one.address is not None]
            slaves = self._slaves()
            free = (number for number in itertools.count(1) if number not in slaves)
            return own | {str(number): at for number, at in [*slaves.items(), *zip(free, connected, strict=False)]}
        mine = {} if self.own_address is None else {"1": self.own_address}
        source = replica.source_address
        return mine if source is None or not replica.connected else {MASTER: source} | mine

    def _epochs(self) -> Epochs:
        return Epochs.parse(StoreEpochs(self._broker.store).text)

    def replicas(self) -> list[ReplicaStatus]:
        """Returns the replicas that have asked for the log since the start, by name."""
        with self._lock:
            addresses = self._addresses
        found = []
        for name, copied, silent_ms, lag_bytes, lag_ms in self._native.replicas():
            silent = timedelta(milliseconds=silent_ms)
            lag = timedelta(milliseconds=lag_ms)
            connected = silent < self._timeout
            found.append(ReplicaStatus(name, addresses.get(name), connected, silent, lag_bytes, lag, copied))
        return found

    def status(self) -> ReplicationStatus:
        """Returns this server's part in replication."""
        replica, failure, replicas, known = self._replica(), self._failure(), self.replicas(), self._epochs()
        stat = self._broker.stat()
        connected = sum(one.connected for one in replicas)
        return ReplicationStatus(
            role=known.role,
            epoch=known.number,
            name="" if replica is None else replica.name,
            address=self.own_address,
            end=stat.max_physical_offset,
            visible_end=stat.visible_physical_offset,
            source=known.source if replica is None else replica.address,
            following=replica is not None and replica.connected,
            failure=None if failure is None else str(failure),
            lag_bytes=None if replica is None else replica.missing_bytes,
            lag=None if replica is None else timedelta(seconds=replica.lag_seconds),
            required=self._required,
            ack=self._ack,
            accepts_writes=replica is None and failure is None and connected >= self._required - 1,
            replicas=replicas,
        )
