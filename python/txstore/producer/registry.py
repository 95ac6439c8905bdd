"""Producer registry: the live producers, by id and by group.

In:     producers that register and leave.
Out:    the members of a group, the owner of a transaction first.
Not here: when they are asked, and about what (`transactions`).
"""

import itertools
import threading

from txstore.interface import ProducerMember

__all__ = ["Producers"]


class Producers:
    """The live producers by id and by group. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._by_number: dict[int, ProducerMember] = {}
        self._by_group: dict[str, dict[int, ProducerMember]] = {}

    def add(self, producer: ProducerMember) -> int:
        """Registers a producer and returns its id (> 0). Idempotent."""
        with self._lock:
            number = producer.number
            if self._by_number.get(number) is not producer:
                # A forked child has a registry of its own, and keeps the ids that its producers know.
                while number == 0 or number in self._by_number:
                    number = next(self._numbers)
                self._by_number[number] = producer
                self._by_group.setdefault(producer.group, {})[number] = producer
            return number

    def remove(self, producer: ProducerMember) -> None:
        """Removes a producer. Unknown producers are ignored."""
        with self._lock:
            if self._by_number.get(producer.number) is producer:
                del self._by_number[producer.number]
                members = self._by_group[producer.group]
                del members[producer.number]
                if not members:
                    del self._by_group[producer.group]

    def get(self, number: int) -> ProducerMember | None:
        """Returns the producer with this id; None if it has left."""
        return self._by_number.get(number)

    def all(self) -> list[ProducerMember]:
        """Returns all live producers."""
        with self._lock:
            return list(self._by_number.values())

    def of_group(self, group: str, owner: int = 0) -> list[tuple[int, ProducerMember]]:
        """Returns the live producers of a group as (id, producer), `owner` first."""
        with self._lock:
            found = list(self._by_group.get(group, {}).items())
        return sorted(found, key=lambda member: member[0] != owner)
