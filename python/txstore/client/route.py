"""Parses topic routes and numbers the queues of all brokers.

In:     a name server's answer.
Out:    brokers and queues. A queue number identifies a queue without its broker's name.
Always: a number means the same queue for the life of the connection. Queues have the order of all RocketMQ clients.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from txstore.errors import ProtocolError

__all__ = ["Queue", "QueueNumbers", "Route", "parse_brokers", "parse_clusters", "parse_route"]

_READ = 4  # RocketMQ's PermName.
_WRITE = 2
_MASTER = "0"
_BARE_KEY = re.compile(r"([{,])\s*(\d+)\s*:")
_QUEUE_BITS = 16


class Queue(NamedTuple):
    """One queue of a topic. Sorts as RocketMQ's MessageQueue does within a topic."""

    broker: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers and queues of a topic."""

    brokers: Mapping[str, str]
    """Master addresses by broker name."""
    read: tuple[Queue, ...]
    write: tuple[Queue, ...]
    is_template: bool = False
    """Whether this is the route of TBW102, the template of new topics: the first send creates the topic."""


def parse_route(body: bytes) -> Route:
    """Parses a name server's route of a topic. Raises ProtocolError if the body is malformed."""
    facts = _object(body)
    brokers = _masters(facts.get("brokerDatas") or ())
    read: list[Queue] = []
    write: list[Queue] = []
    try:
        for row in facts.get("queueDatas") or ():
            name, perm = str(row["brokerName"]), int(row["perm"])
            if name not in brokers:
                continue
            if perm & _READ:
                read += (Queue(name, queue_id) for queue_id in range(int(row["readQueueNums"])))
            if perm & _WRITE:
                write += (Queue(name, queue_id) for queue_id in range(int(row["writeQueueNums"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the name server returned a malformed route: {error!r}") from error
    return Route(brokers, tuple(sorted(read)), tuple(sorted(write)))


def parse_brokers(body: bytes) -> dict[str, str]:
    """Parses a cluster's master addresses by broker name. Raises ProtocolError if the body is malformed."""
    table = _object(body).get("brokerAddrTable")
    return _masters(table.values() if isinstance(table, dict) else ())


def parse_clusters(body: bytes) -> list[str]:
    """Parses the names of the clusters that a name server knows. Raises ProtocolError if the body is malformed."""
    table = _object(body).get("clusterAddrTable")
    return sorted(table) if isinstance(table, dict) else []


def _masters(rows: Iterable[Any]) -> dict[str, str]:
    """Returns master addresses by broker name, without brokers that have no master now."""
    found: dict[str, str] = {}
    for row in rows:
        addresses = row.get("brokerAddrs") if isinstance(row, dict) else None
        if isinstance(addresses, dict) and _MASTER in addresses:
            found[str(row.get("brokerName"))] = str(addresses[_MASTER])
    return found


def _object(body: bytes) -> dict[str, Any]:
    """Parses a JSON object. Accepts numbers as keys, which RocketMQ may write although JSON does not allow them."""
    text = body.decode("utf-8", "replace")
    try:
        facts = json.loads(text)
    except ValueError:
        try:
            facts = json.loads(_BARE_KEY.sub(r'\1"\2":', text))
        except ValueError as error:
            raise ProtocolError(f"the name server returned invalid JSON: {error}") from error
    if not isinstance(facts, dict):
        raise ProtocolError(f"the name server returned a JSON {type(facts).__name__}, expected an object")
    return facts


class QueueNumbers:
    """Numbers queues: for the first broker seen the number is the queue id; the next broker's begin at 65,536."""

    def __init__(self) -> None:
        self._brokers: dict[str, int] = {}
        self._names: list[str] = []

    def number(self, queue: Queue) -> int:
        index = self._brokers.get(queue.broker)
        if index is None:
            index = self._brokers.setdefault(queue.broker, len(self._names))
            self._names.append(queue.broker)
        return index << _QUEUE_BITS | queue.queue_id

    def queue(self, number: int) -> Queue:
        """Returns the queue with this number. Raises IndexError if the number was never assigned."""
        return Queue(self._names[number >> _QUEUE_BITS], number & (1 << _QUEUE_BITS) - 1)
