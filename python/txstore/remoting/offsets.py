"""Offsets that consumers here have acknowledged and brokers do not know yet.

In: what consumers acknowledge. Out: what is to be told to brokers, once. Always: of a retry topic, whose place brokers
keep once for a group, the least of what its topics' consumers here have done is told. Not here: sending.
"""

import threading
from typing import NamedTuple

from txstore._native import RETRY_PREFIX
from txstore.message import is_retry_progress

__all__ = ["Acknowledged", "Offsets"]


class Acknowledged(NamedTuple):
    """A group's place in a queue."""

    topic: str
    group: str
    number: int
    queue_offset: int


class Offsets:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._untold: dict[tuple[str, str, int], int] = {}
        self._retries: dict[tuple[str, int], dict[str, int]] = {}

    @staticmethod
    def told_as(topic: str, name: str) -> str:
        """The group that a broker knows behind a name."""
        return topic.removeprefix(RETRY_PREFIX) if is_retry_progress(topic, name) else name

    def set(self, topic: str, name: str, number: int, queue_offset: int) -> None:
        with self._lock:
            group = self.told_as(topic, name)
            if group != name:
                done = self._retries.setdefault((topic, number), {})
                done[name] = queue_offset
                queue_offset = min(done.values())
            self._untold[topic, group, number] = queue_offset

    def begin(self, topic: str, name: str, number: int, queue_offset: int) -> None:
        """Where a consumer begins in a retry topic, which others' progress must not pass."""
        if is_retry_progress(topic, name):
            with self._lock:
                self._retries.setdefault((topic, number), {}).setdefault(name, queue_offset)

    def get(self, topic: str, name: str, number: int) -> int | None:
        """What is known here and not told; None: ask the broker."""
        with self._lock:
            if is_retry_progress(topic, name):
                return self._retries.get((topic, number), {}).get(name)
            return self._untold.get((topic, name, number))

    def leave(self, topic: str, name: str, number: int | None = None) -> None:
        """A consumer does not read a queue any more; None: any of the topic."""
        with self._lock:
            for key in [key for key in self._retries if key[0] == topic and number in (None, key[1])]:
                self._retries[key].pop(name, None)
                if not self._retries[key]:
                    del self._retries[key]

    def untold(
        self, topic: str | None = None, group: str | None = None, number: int | None = None
    ) -> list[Acknowledged]:
        """What brokers do not know yet: all, or of one group or queue."""
        with self._lock:
            return [
                Acknowledged(*key, queue_offset)
                for key, queue_offset in self._untold.items()
                if topic in (None, key[0]) and group in (None, key[1]) and number in (None, key[2])
            ]

    def told(self, row: Acknowledged) -> None:
        """The broker knows it, or somebody else's word counts now."""
        with self._lock:
            key = (row.topic, row.group, row.number)
            if self._untold.get(key) == row.queue_offset:
                del self._untold[key]
