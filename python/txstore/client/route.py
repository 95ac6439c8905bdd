"""Parses topic routes and numbers the queues of all brokers.

In:     a name server's answer.
Out:    brokers and queues. A queue number identifies a queue without its broker's name.
Always: a number means the same queue for the life of the connection. Queues have the order of all RocketMQ clients. A
        broker without a master is read at its replica with the lowest id, and cannot be written to.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from txstore.errors import ProtocolError

__all__ = [
    "Queue",
    "QueueNumbers",
    "Route",
    "has_masters",
    "parse_addresses",
    "parse_brokers",
    "parse_clusters",
    "parse_names",
    "parse_route",
]

_READ = 4  # RocketMQ's PermName.
_WRITE = 2
_MASTER = 0
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
    """Addresses by broker name: the master's, or that of a replica while there is no master."""
    read: tuple[Queue, ...]
    write: tuple[Queue, ...]
    is_template: bool = False
    """Whether this is the route of TBW102, the template of new topics: the first send creates the topic."""


def parse_route(body: bytes) -> Route:
    """Parses a name server's route of a topic. Raises ProtocolError if the body is malformed."""
    facts = _object(body)
    found = _addresses(facts.get("brokerDatas") or ())
    brokers = _to_read(found)
    read: list[Queue] = []
    write: list[Queue] = []
    try:
        for row in facts.get("queueDatas") or ():
            name, perm = str(row["brokerName"]), int(row["perm"])
            if name not in brokers:
                continue
            if perm & _READ:
                read += (Queue(name, queue_id) for queue_id in range(int(row["readQueueNums"])))
            if perm & _WRITE and _MASTER in found[name]:
                write += (Queue(name, queue_id) for queue_id in range(int(row["writeQueueNums"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the name server returned a malformed route: {error!r}") from error
    return Route(brokers, tuple(sorted(read)), tuple(sorted(write)))


def parse_brokers(body: bytes) -> dict[str, str]:
    """Parses a cluster's brokers as `Route.brokers` has them. Raises ProtocolError if the body is malformed."""
    table = _object(body).get("brokerAddrTable")
    return _to_read(_addresses(table.values() if isinstance(table, dict) else ()))


def parse_addresses(body: bytes) -> dict[str, list[str]]:
    """Parses the addresses of each broker of a route: the master's, then those of its replicas by their ids.

    Raises ProtocolError if the body is malformed.
    """
    found = _addresses(_object(body).get("brokerDatas") or ())
    return {name: [numbered[key] for key in sorted(numbered)] for name, numbered in found.items()}


def has_masters(body: bytes) -> bool:
    """Returns whether each broker of a route, or of a cluster, has a master. Raises ProtocolError."""
    facts = _object(body)
    table = facts.get("brokerAddrTable")
    rows = table.values() if isinstance(table, dict) else facts.get("brokerDatas") or ()
    return all(_MASTER in addresses for addresses in _addresses(rows).values())


def parse_clusters(body: bytes) -> list[str]:
    """Parses the names of the clusters that a name server knows. Raises ProtocolError if the body is malformed."""
    table = _object(body).get("clusterAddrTable")
    return sorted(table) if isinstance(table, dict) else []


def parse_names(body: bytes, field: str) -> list[str]:
    """Parses a list of names, as `topicList`. Raises ProtocolError if the body is malformed."""
    names = _object(body or b"{}").get(field) or ()
    return [str(name) for name in names] if isinstance(names, list) else []


def _addresses(rows: Iterable[Any]) -> dict[str, dict[int, str]]:
    """Returns the addresses of each broker by their ids; 0 is the master's."""
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        addresses = row.get("brokerAddrs") if isinstance(row, dict) else None
        if isinstance(addresses, dict):
            numbered = {int(key): str(address) for key, address in addresses.items() if str(key).isdecimal()}
            found[str(row.get("brokerName"))] = numbered
    return found


def _to_read(brokers: Mapping[str, Mapping[int, str]]) -> dict[str, str]:
    return {name: addresses[min(addresses)] for name, addresses in brokers.items() if addresses}


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
