"""Batch records: which transactions are a batch of a Spark query, as the log says, and what becomes of the others.

In:     transactions of the group of Spark's writes that are still pending; the records of batches.
Out:    commits of those that a record names; rollbacks of those that an attempt has left which did not count.
Always: the first record of a batch decides, and a later batch of the same query decides that an earlier one without a
        record never happened. Without either the transactions wait: their query may still run, or be restarted.
Not here: writing transactions and records (`txstore.spark.sink`).
"""

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from txstore._native import StoredMessage, WaitingHalf
from txstore.errors import AlreadyEndedError, MessageNotFoundError, TransactionNotFoundError

__all__ = ["BATCH_LABEL", "RECORDS_TOPIC", "SINK_GROUP", "BatchRecords", "record_id"]

_log = logging.getLogger("txstore.check")

SINK_GROUP = "TXSTORE_SPARK_SINK"
"""The producer group of all writes of Spark."""
RECORDS_TOPIC = "TXSTORE_SPARK_BATCHES"
"""The topic of the records."""
BATCH_LABEL = "SPARK_BATCH"
"""The property of a transaction's first message that names its query and batch, `orders-to-paid:17`."""
_PENDING_PAGE = 50_000


def record_id(app: str, batch: int) -> str:
    """Returns the unique id of a batch's record."""
    return hashlib.sha256(f"{app}\0{batch}".encode()).hexdigest()[:32].upper()


class _Store(Protocol):
    def halves_waiting(self, after_half_queue_offset: int, limit: int) -> Sequence[WaitingHalf]: ...
    def half(self, half_queue_offset: int) -> StoredMessage: ...
    def end_transaction(
        self,
        half_queue_offset: int,
        prepared_transaction_offset: int,
        *,
        commit: bool,
        transaction_id: str | None = None,
        producer_group: str | None = None,
    ) -> object: ...


class BatchRecords:
    """Ends transactions of Spark's writes that nobody else will end."""

    def __init__(
        self,
        store: _Store,
        topics: Callable[[], Collection[str]],
        by_key: Callable[[str, str, int], list[StoredMessage]],
    ) -> None:
        """`by_key` finds messages of a topic by key or unique id, newest first."""
        self._store, self._topics, self._by_key = store, topics, by_key

    def settle(self) -> None:
        """Ends the pending transactions whose outcome the records tell. A job of housekeeping."""
        if RECORDS_TOPIC not in self._topics():
            return
        after = -1
        while waiting := self._store.halves_waiting(after, _PENDING_PAGE):
            for half in waiting:
                if half.producer_group == SINK_GROUP:
                    self._settle(half)
            after = waiting[-1].half_queue_offset

    def _settle(self, half: WaitingHalf) -> None:
        try:
            message = self._store.half(half.half_queue_offset)
            verdict = self.verdict(message)
            if verdict is None:
                return
            self._store.end_transaction(
                half.half_queue_offset,
                half.prepared_transaction_offset,
                commit=verdict,
                transaction_id=message.transaction_id,
                producer_group=SINK_GROUP,
            )
        except (AlreadyEndedError, MessageNotFoundError, TransactionNotFoundError):
            return  # It has ended meanwhile.
        fields = {"transaction_id": message.transaction_id, "batch": message.properties[BATCH_LABEL]}
        done = "committed" if verdict else "rolled back"
        _log.info("transaction %(transaction_id)s of batch %(batch)s: %(done)s", fields | {"done": done}, extra=fields)

    def verdict(self, message: StoredMessage) -> bool | None:
        """Returns whether a half message's transaction is committed, by the record of its batch; None: not known yet.

        False if the record does not name it, or if there is none, but one of a later batch of the query.
        """
        app, colon, number = message.properties.get(BATCH_LABEL, "").rpartition(":")
        if not colon or not number.isdecimal():
            return None
        batch = int(number)
        found = self._by_key(RECORDS_TOPIC, record_id(app, batch), 1)
        if found:
            named = {str(row[2]) for row in json.loads(found[0].body)["transactions"]}
            return message.transaction_id in named
        later = self._by_key(RECORDS_TOPIC, app, 1)
        return False if later and json.loads(later[0].body)["batch"] > batch else None
