"""Committed: appends a message in the call that commits its row, where that is cheap and certain.

In:     a row, and the driver's connection right after a commit.
Out:    on SQLite, a message that is visible when the commit returns; elsewhere, the forwarder looks at once.
Always: a message is appended only if the row is read as committed: no transaction is open on the driver's connection,
        and the row is there. So a savepoint that was released, a session that has joined an outer transaction, and a
        commit that turned into a rollback append nothing.
Not here: who tells of commits (`early` for SQLAlchemy, `transaction.on_commit` for Django).
"""

import sqlite3
from typing import Any

from txstore._native import OutboxRow
from txstore.database.outbox.forwarder import Forwarder

__all__ = ["append_early", "may_be_open"]

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of MariaDB's protocol.


def append_early(forwarder: Forwarder, row_id: int, row: OutboxRow, queue_id: int | None, driver: Any) -> None:
    """Appends a row's message, if it is certain that the row is committed. Without a queue, the forwarder does it."""
    appends = (
        queue_id is not None
        and isinstance(driver, sqlite3.Connection)
        and not may_be_open(driver)
        and not _begins_by_itself(driver)
        and _is_there(driver, row_id)
    )
    if appends and queue_id is not None:
        forwarder.committed(row_id, row, queue_id)
    else:
        forwarder.look()


def _begins_by_itself(driver: sqlite3.Connection) -> bool:
    """Tells whether a SELECT would begin a transaction (Python 3.12)."""
    return getattr(driver, "autocommit", -1) is False


def _is_there(driver: sqlite3.Connection, row_id: int) -> bool:
    cursor = driver.cursor()
    cursor.row_factory = None
    try:
        cursor.execute("SELECT 1 FROM txstore_outbox WHERE id = ?", (row_id,))
        return cursor.fetchone() is not None
    except sqlite3.Error:
        return False
    finally:
        cursor.close()


def may_be_open(driver: Any) -> bool:
    """Tells whether the outermost transaction may still be open: the session may have joined one of its caller's."""
    status = getattr(driver, "server_status", None)  # As PyMySQL and its kind received it last.
    return bool(status & _IN_TRANSACTION if isinstance(status, int) else getattr(driver, "in_transaction", False))
