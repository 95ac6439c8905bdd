"""Lifetime: what must be ended with a broker, also with one that nobody closed.

In: a broker's store, its tables, its threads. Out: a store that is closed with everything written. Always: nothing here
knows the broker, so that a forgotten one can be collected; in a forked child nothing is ended. Not here: when a broker
closes.
"""

import logging
import os
from dataclasses import dataclass

from txstore._native import Store
from txstore.check import CheckPool
from txstore.errors import ReadOnlyError
from txstore.housekeeping import Housekeeping
from txstore.topics import Groups, Topics

__all__ = ["Parts", "end_forgotten"]

_log = logging.getLogger("txstore.broker")
_FORGOTTEN_STOP_SECONDS = 5.0  # The collector may run while this thread holds what the job waits for.


@dataclass(frozen=True, slots=True)
class Parts:
    """What must be ended with a broker."""

    store: Store
    tables: tuple[Topics, Groups]
    housekeeping: Housekeeping
    pool: CheckPool
    process: int

    def write_tables(self) -> None:
        """Writes topics and groups that wait to be written."""
        for table in self.tables:
            table.write()

    def shut(self) -> None:
        """Writes what is left and closes the store, even where writing fails."""
        try:
            self.write_tables()
        finally:
            try:
                self.store.write_offsets()
            except ReadOnlyError:
                pass
            finally:
                self.store.close()


def end_forgotten(parts: Parts) -> None:
    """Ends a broker that nobody closed. Runs wherever it is collected, so it waits for no check and raises nothing."""
    if os.getpid() != parts.process:
        return
    try:
        parts.housekeeping.stop(_FORGOTTEN_STOP_SECONDS)
        parts.pool.stop()
        if not parts.store.closed:
            parts.shut()
    except Exception:
        _log.exception("a forgotten store was not closed cleanly")
