"""The state of a source and of a replica, as operators see it.

In:     what a server knows of itself and of the other nodes.
Out:    plain values, which an administrative call carries.
Not here: how a server finds them (`server/replicas`, `server/replication`).
"""

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["ReplicaStatus", "ReplicationStatus"]


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, as its source sees it."""

    name: str
    address: str | None
    """HOST:PORT at which clients reach it; None if it has not told."""
    connected: bool
    """Whether it asks for the log. A replica that is silent for longer than `replica_timeout` is not connected."""
    silent: timedelta
    """How long ago its last request ended; zero while one is held."""
    lag_bytes: int
    """How many bytes of the log its copy lacks."""
    lag: timedelta
    """The age of the first record that its copy lacks; zero if it lacks none."""
    copied_end: int
    """The physical offset up to which its copy goes, as it reported it last."""


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """A server's part in replication."""

    role: str
    """`source`, `replica`, or `fenced`: a source that another node has replaced."""
    epoch: int
    """The last epoch of its log: 1 before the first promotion."""
    name: str
    """The name of a replica; empty in a source."""
    address: str | None
    """HOST:PORT at which clients reach it."""
    end: int
    """The physical offset after the last record of its log."""
    visible_end: int
    """The physical offset below which readers see the log."""
    source: str | None
    """The address of a replica's source, or of the node that has replaced this one."""
    following: bool
    """Whether a replica is connected to its source. False in a source."""
    failure: str | None
    """Why a replica has stopped following, or why the store accepts no messages."""
    lag_bytes: int | None
    """How many bytes of the source's log a replica lacked when it heard of it last. None in a source, and before."""
    lag: timedelta | None
    """How long ago a replica had all that its source had; zero while it has all. None in a source."""
    required: int
    """How many copies a write has before it is acknowledged, the source's own included."""
    ack: str
    """When a copy counts: `disk` or `memory`."""
    accepts_writes: bool
    """Whether messages and ends of transactions are accepted now."""
    replicas: list[ReplicaStatus]
    """The replicas that have asked since the start, by name."""
