"""Keeps acknowledged queue offsets until brokers know them. `offset_store` reports them.

In:     queue offsets that consumers acknowledge.
Out:    offsets to report to brokers, each once.
Always: brokers keep one offset per group in a retry topic, so the least of the offsets of the topics' consumers is
        reported. After the end of the process that knew them, offsets are reported again, and then only raise the
        group's: meanwhile another client may have read on, or an operator may have reset the group.
"""

import threading
from typing import NamedTuple

from txstore._native import RETRY_PREFIX
from txstore.message import is_retry_progress

__all__ = ["Acknowledged", "Offsets"]


class Acknowledged(NamedTuple):
    """A group's queue offset in one queue. `number` identifies the queue."""

    topic: str
    group: str
    number: int
    queue_offset: int


class Offsets:
    """Acknowledged queue offsets of this client's consumers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unreported: dict[tuple[str, str, int], int] = {}
        self._reported: dict[tuple[str, str, int], int] = {}
        self._raising: set[tuple[str, str, int]] = set()
        self._retries: dict[tuple[str, int], dict[str, int]] = {}

    @staticmethod
    def reported_as(topic: str, name: str) -> str:
        """Returns the group name that brokers use for `name`: in a retry topic several names share one group."""
        return topic.removeprefix(RETRY_PREFIX) if is_retry_progress(topic, name) else name

    def set(self, topic: str, name: str, number: int, queue_offset: int) -> None:
        with self._lock:
            group = self.reported_as(topic, name)
            if group != name:
                done = self._retries.setdefault((topic, number), {})
                done[name] = queue_offset
                queue_offset = min(done.values())
            self._unreported[topic, group, number] = queue_offset

    def begin(self, topic: str, name: str, number: int, queue_offset: int) -> None:
        """Records where a consumer begins in a retry topic. No offset after it is reported until it reads on."""
        if is_retry_progress(topic, name):
            with self._lock:
                self._retries.setdefault((topic, number), {}).setdefault(name, queue_offset)

    def get(self, topic: str, name: str, number: int) -> int | None:
        """Returns the queue offset that is known here, or None if the broker must be asked."""
        with self._lock:
            if is_retry_progress(topic, name):
                return self._retries.get((topic, number), {}).get(name)
            return self._unreported.get((topic, name, number))

    def leave(self, topic: str, name: str, number: int | None = None) -> None:
        """Forgets a consumer's progress in a queue of a retry topic, or in all its queues if `number` is None."""
        with self._lock:
            known_as = (topic, self.reported_as(topic, name))
            for row in [row for row in self._reported if row[:2] == known_as and number in (None, row[2])]:
                del self._reported[row]
            for key in [key for key in self._retries if key[0] == topic and number in (None, key[1])]:
                self._retries[key].pop(name, None)
                if not self._retries[key]:
                    del self._retries[key]

    def unreported(
        self, topic: str | None = None, group: str | None = None, number: int | None = None
    ) -> list[Acknowledged]:
        """Returns the offsets that brokers do not know yet, optionally of one topic, group or queue."""
        with self._lock:
            return [
                Acknowledged(*key, queue_offset)
                for key, queue_offset in self._unreported.items()
                if topic in (None, key[0]) and group in (None, key[1]) and number in (None, key[2])
            ]

    def mark_reported(self, row: Acknowledged) -> None:
        """Removes an offset that was reported or is no longer valid, unless a different one was set meanwhile."""
        with self._lock:
            key = (row.topic, row.group, row.number)
            self._raising.discard(key)
            if self._unreported.get(key) == row.queue_offset:
                del self._unreported[key]
                self._reported[key] = row.queue_offset

    def report_again(self) -> None:
        """Lets all offsets of this client's queues be reported again: the process that knew them has ended."""
        with self._lock:
            self._unreported = self._reported | self._unreported
            self._raising.update(self._unreported)

    def only_raises(self, row: Acknowledged) -> bool:
        """Returns whether the group's offset may only be raised to this one, since it is reported again."""
        with self._lock:
            return (row.topic, row.group, row.number) in self._raising
