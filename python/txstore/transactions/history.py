"""The checks that were sent: to which producer, when, and with what result.

In:     one record per check.
Out:    the checks of a transaction, oldest first.
Always: only in memory, and bounded: the latest checks of the transactions that were checked last.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from txstore.message import LocalTransactionState

__all__ = ["CheckHistory", "CheckRecord"]


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """One check that was sent: when, to which producer, and its result."""

    time: datetime
    """When it was sent, in UTC."""
    producer: str
    answer: LocalTransactionState
    reason: str | None
    """Why it counts as UNKNOWN, or why the end after it failed; None if neither."""


class CheckHistory:
    """Keeps the checks of transactions in memory: the latest `checks_max` of the latest `transactions_max`."""

    def __init__(self, transactions_max: int = 10_000, checks_max: int = 32) -> None:
        self._lock = threading.RLock()
        self._records: OrderedDict[int, deque[CheckRecord]] = OrderedDict()
        self._transactions_max = transactions_max
        self._checks_max = checks_max

    def add(self, half_queue_offset: int, record: CheckRecord) -> None:
        with self._lock:
            records = self._records.setdefault(half_queue_offset, deque(maxlen=self._checks_max))
            records.append(record)
            self._records.move_to_end(half_queue_offset)
            while len(self._records) > self._transactions_max:
                self._records.popitem(last=False)

    def of(self, half_queue_offsets: Iterable[int]) -> list[CheckRecord]:
        """Returns the checks of a transaction, given by the offsets of its copies, oldest first."""
        with self._lock:
            return [record for offset in half_queue_offsets for record in self._records.get(offset, ())]
