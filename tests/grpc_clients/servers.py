"""What the tests ask of a server, `txstore serve` or a real RocketMQ.

In:     the calls of an operator: topics of a message type, groups.
Out:    an endpoint for clients; the messages of a topic, counts of dead letters.
Always: both have the same topics, groups, times and accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ACCESS_KEY", "QUEUES", "SECRET_KEY", "GrpcServer", "Stored"]

ACCESS_KEY, SECRET_KEY = "operator", "secret-of-operator"
QUEUES = 4


@dataclass(frozen=True)
class Stored:
    """A message in the store."""

    body: str
    properties: Mapping[str, str]
    stored_ms: int


class GrpcServer(Protocol):
    """What the scenarios ask of a server."""

    @property
    def endpoints(self) -> str:
        """HOST:PORT of plain connections and, with a certificate, of TLS."""

    def create_topic(self, topic: str, kind: str) -> None:
        """`kind`: NORMAL, FIFO, DELAY or TRANSACTION."""

    def create_group(self, group: str, *, fifo: bool, attempts: int) -> None:
        """`attempts`: how often a message is delivered before it is a dead letter."""

    def stored(self, topic: str) -> list[Stored]:
        """The visible messages of a topic, in the order of each queue."""

    def dead_letters(self, group: str) -> int:
        """How many dead letters the group has."""
