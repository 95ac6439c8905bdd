"""Lifetime: closes the parts of a broker, also when nobody called `close`.

In:     a broker's store, its tables, its threads.
Out:    a closed store with everything written.
Always: nothing here refers to the broker, so that the garbage collector can free it. A forked child closes nothing.
Not here: when a broker closes.
"""

import logging
import os
from dataclasses import dataclass, field

from txstore._native import Store
from txstore.broker.housekeeping import Housekeeping
from txstore.broker.local_socket import LocalSocket
from txstore.broker.topics import Groups, Topics
from txstore.errors import ReadOnlyError
from txstore.producer.outbox import Outboxes
from txstore.transactions.pool import Pool

__all__ = ["Parts", "close_abandoned"]

_log = logging.getLogger("txstore.broker")
_ABANDONED_STOP_SECONDS = 5.0  # Bounded: the collector may run in a thread that holds what the current job waits for.


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a broker that must be closed with it."""

    store: Store
    tables: tuple[Topics, Groups]
    housekeeping: Housekeeping
    pool: Pool
    outboxes: Outboxes
    process: int
    local_sockets: list[LocalSocket] = field(default_factory=list)
    """The store's own socket, if it listens."""

    def write_tables(self) -> None:
        """Writes pending changes of topics and groups."""
        for table in self.tables:
            table.write()

    def stop_listening(self) -> None:
        """Closes the connections of other processes. Their sockets are removed in `shut`, before the lock is."""
        for local_socket in self.local_sockets:
            local_socket.stop()

    def shut(self) -> None:
        """Writes what is left and closes the store, even if writing fails."""
        try:
            self.write_tables()
        finally:
            try:
                self.store.write_offsets()
            except ReadOnlyError:
                pass
            finally:
                for local_socket in self.local_sockets:
                    local_socket.remove()
                self.store.close()


def close_abandoned(parts: Parts) -> None:
    """Closes a broker that was never closed. The collector calls it, so it waits for no check and raises nothing."""
    if os.getpid() != parts.process:
        return
    try:
        parts.stop_listening()
        parts.housekeeping.stop(_ABANDONED_STOP_SECONDS)
        parts.pool.stop()
        parts.outboxes.close(_ABANDONED_STOP_SECONDS)
        if not parts.store.closed:
            parts.shut()
    except Exception:
        _log.exception("a store that was never closed could not be closed cleanly")
