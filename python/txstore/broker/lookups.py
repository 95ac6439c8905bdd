"""Lookups: the calls of an open store that find messages and transactions in its log.

In:     ids, keys, times.
Out:    messages, and what the log knows of ids.
Always: only reads.
Not here: how they are found (`queries`), the histories of transactions (`broker`).
"""

import dataclasses
from collections.abc import Sequence
from datetime import datetime

from txstore._native import StoredMessage
from txstore.broker.escape_journal import read_escapes
from txstore.broker.queries import Queries
from txstore.message import TransactionState
from txstore.transactions.escaped import EscapedTransaction
from txstore.transactions.trace import TransactionTrace

__all__ = ["Lookups"]


class Lookups:
    """The part of an embedded broker that looks things up."""

    def __init__(self, queries: Queries, path: str) -> None:
        self._queries = queries
        self._directory = path

    def message(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Finds a message by its unique id or its offset id. With `topic`, only that topic is searched.

        Raises MessageNotFoundError, InvalidNameError (an unknown topic).
        """
        return self._queries.message(message_id, topic)

    def has_messages(self, topic: str, message_ids: Sequence[str]) -> list[bool]:
        """Tells for each unique id whether the log has a message of the topic with it, also a delayed one that is not
        due. False for an unknown topic. Raises InvalidNameError for a system topic."""
        return self._queries.has_messages(topic, message_ids)

    def query(self, topic: str, key: str, max_messages: int = 64) -> list[StoredMessage]:
        """Finds messages of a topic by key or unique id, newest first.

        Raises InvalidNameError (a system topic or an unknown one), InvalidOptionError.
        """
        return self._queries.by_key(topic, key, max_messages)

    def query_by_time(
        self, topic: str, begin: datetime, end: datetime | None = None, *, max_messages: int = 64
    ) -> list[StoredMessage]:
        """Finds messages of a topic stored at `begin` or later and before `end`, oldest first.

        A binary search finds the first. Raises InvalidNameError, InvalidOptionError (a time without a time zone).
        """
        return self._queries.by_time(topic, begin, end, max_messages)

    def transaction_states(self, transaction_ids: Sequence[str]) -> list[TransactionState | None]:
        """Returns for each id how the log has the newest transaction with it; None if the log has no trace of it.

        Looks each one up, so it takes as long for a large log as for a small one. A transaction whose half message
        retention has removed counts as committed or discarded while that record is left.
        """
        return self._queries.transaction_states(transaction_ids)

    def escaped_transactions(self) -> list[EscapedTransaction]:
        """Returns the transactions that a replica has let escape to another broker, oldest first. Those whose half
        message retention has removed are dropped when the store is served next. Raises StoreCorruptError."""
        return read_escapes(self._directory)

    def _with_escape(self, trace: TransactionTrace) -> TransactionTrace:
        """Adds to a trace whether its transaction has escaped."""
        escaped = (
            one for one in self.escaped_transactions() if (one.half_queue_offset, one.physical_offset) in trace.halves
        )
        return dataclasses.replace(trace, escaped=next(escaped, None))

    def oldest_timestamp(self) -> datetime | None:
        """Returns when the first message left in the log was stored, also one of a system topic; None if the log is
        empty."""
        return self._queries.oldest_timestamp()
