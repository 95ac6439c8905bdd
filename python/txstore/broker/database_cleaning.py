"""Database cleaning: has old rows of local transactions removed.

In:     the producers of transactions, the time for which files are kept.
Out:    a call of each producer's database, in the pool of checks, because a database can hang.
Always: no row is removed that the check of a pending transaction may look for.
Not here: how a database removes rows (`txstore.database`).
"""

import functools
import logging
from collections.abc import Callable

from txstore._native import Store
from txstore.message import utc
from txstore.producer import TransactionProducer
from txstore.producer.local_transaction import error_text
from txstore.producer.registry import Producers
from txstore.transactions.pool import Pool, Result

__all__ = ["CLEAN_SECONDS", "DatabaseCleaning"]

CLEAN_SECONDS = 3600.0
"""Time between two rounds."""

_CLOCKS_MS = 3_600_000  # The times in a database's rows come from the clocks of other processes.

_log = logging.getLogger("txstore.broker")


class DatabaseCleaning:
    """Cleans the databases of a broker's producers."""

    def __init__(
        self, store: Store, producers: Producers, pool: Pool, *, kept_ms: int, time_ms: Callable[[], int]
    ) -> None:
        """`kept_ms`: how long rows are kept at least."""
        self._store = store
        self._producers = producers
        self._pool = pool
        self._kept_ms = kept_ms
        self._time_ms = time_ms

    def round(self) -> None:
        """Asks each database once to remove what is older than all pending transactions. Does not wait for it."""
        oldest = self._store.halves_waiting(-1, 1)
        age_ms = max([self._kept_ms, *(half.stored_age_ms for half in oldest)])
        before = utc(self._time_ms() - age_ms - _CLOCKS_MS)
        for producer in self._producers.all():
            if isinstance(producer, TransactionProducer):
                clean, number = functools.partial(producer.clean_database, before), producer.number
                self._pool.submit(number, ("clean", number), clean, done=_cleaned)


def _cleaned(result: Result) -> None:
    if result.error is not None:
        reason = error_text(result.error)
        _log.warning("a database could not be cleaned: %s", reason, extra={"reason": reason})
