"""Ends the transactions of a source that have escaped from its replica while it was away.

In:     the record of this node, and what a replica that may let transactions escape tells when it connects.
Out:    these transactions, rolled back in this log, because another broker ends them.
Always: until each such replica has told, no transaction of this store is checked or ended, except by an operator. A
        transaction that may be at another txstore is held until that is settled.
Not here: what escapes (`escape`), who holds ends (`rust/src/store/held_ends.rs`).
"""

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Sequence

from txstore._native import Store
from txstore.broker.escape_journal import EscapeJournal, escape_of
from txstore.errors import AlreadyEndedError, InvalidOptionError, MessageNotFoundError, TransactionNotFoundError
from txstore.message import utc
from txstore.transaction_state import TransactionState
from txstore.transactions.escaped import EscapedTransaction, EscapeState

__all__ = ["Returning"]

_log = logging.getLogger("txstore.escape")
_GONE = (TransactionNotFoundError, MessageNotFoundError)


class Returning:
    """What a source knows of escaped transactions. Thread-safe."""

    def __init__(self, store: Store, journal: EscapeJournal, *, settles: bool) -> None:
        """`settles`: whether this node finds out by itself what became of what it was sending as a replica."""
        self._store, self._journal, self._settles = store, journal, settles
        self._lock = threading.Lock()
        self._awaited = journal.replicas()
        self._ended: set[int] = set()
        if self._awaited:
            names = ", ".join(sorted(self._awaited))
            _log.warning("no transaction is checked or ended until replica %s has told which have escaped", names)
        self.apply()

    @property
    def awaited(self) -> frozenset[str]:
        """The names of the replicas that have not told yet."""
        return frozenset(self._awaited)

    def note_escaped(self, replica: str, escapes: bool, rows: Sequence[str]) -> None:
        """Takes what a replica tells: the transactions that have escaped, and whether more may.

        `rows` are texts of JSON objects. Raises InvalidOptionError if another replica may let transactions escape, or
        for an invalid row.
        """
        others = self._journal.replicas() - {replica}
        if escapes and others:
            name = ", ".join(sorted(others))
            raise InvalidOptionError(
                f"replica {name} may let transactions escape already, and two could send one to different brokers\n"
                f"hint: pass --escape-to at one replica only; `txstore replica forget` removes {name}",
                option="escape_to",
            )
        try:
            told = [escape_of(json.loads(row)) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            text = f"rows must be escaped transactions as this release writes them: {error!r}"
            raise InvalidOptionError(f"{text}\nhint: use the same release on both sides", option="rows") from error
        self._journal.note_replica(replica, escapes=escapes)
        self._journal.add(one for one in told if not self._is_known_as_twice(one))
        with self._lock:
            self._awaited.discard(replica)
        self.apply()

    def forget(self, replica: str) -> None:
        """Waits no longer for a replica that does not come back."""
        self._journal.note_replica(replica, escapes=False)
        with self._lock:
            self._awaited.discard(replica)
        self.apply()

    def apply(self) -> None:
        """Ends what has escaped, and holds what may have."""
        with self._lock:
            held = set()
            settles = self._settles or bool(self._journal.replicas())
            for one in self._journal.escapes():
                if one.state in (EscapeState.SENT, EscapeState.ROLLED_BACK):
                    if one.half_queue_offset not in self._ended:
                        self._end(one)
                        self._ended.add(one.half_queue_offset)
                elif one.state is EscapeState.SENDING and one.is_txstore and settles:
                    held.add(one.half_queue_offset)
            self._store.hold_ends(None if self._awaited else held)

    def _is_known_as_twice(self, one: EscapedTransaction) -> bool:
        known = self._journal.get(one.half_queue_offset)
        return known is not None and known.state is EscapeState.TWICE and one.state is EscapeState.SENT

    def _end(self, one: EscapedTransaction) -> None:
        try:
            ended = self._store.end_transaction(
                one.half_queue_offset,
                one.physical_offset,
                commit=False,
                transaction_id=one.transaction_id,
                by_hand=True,
            )
        except AlreadyEndedError as error:
            if error.outcome is TransactionState.COMMITTED and one.state is EscapeState.SENT:
                now = utc(time.time_ns() // 1_000_000)
                self._journal.add([dataclasses.replace(one, state=EscapeState.TWICE, time=now)])
                text = "transaction %s was committed here and has escaped to broker %s: it may be delivered twice"
                _log.warning(text, one.transaction_id, one.broker_name)
            return
        except _GONE:
            return  # This log does not have it: it lost its end, or retention removed it.
        if not ended.already:
            where = f"to broker {one.broker_name}" if one.broker_name else "from its replica, which rolled it back"
            _log.info("transaction %s has escaped %s", one.transaction_id, where)
