"""Early: appends a message in the call that commits a SQLAlchemy session, where that is cheap and certain.

In:     the sessions in which rows were inserted.
Out:    messages that are visible when `commit()` returns, on SQLite; elsewhere, the forwarder looks at once.
Always: a message is appended only if the row is read as committed: no transaction is open on the driver's connection,
        and the row is there. So a savepoint that was released, a session that has joined an outer transaction, and a
        commit that turned into a rollback append nothing.
Not here: sessions of other kinds; the forwarder looks for their commits.
"""

import sqlite3
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from txstore._native import OutboxRow
from txstore.database.outbox.forwarder import Forwarder

__all__ = ["note"]

_NAME = "txstore.database.outbox"
_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of MariaDB's protocol.


@dataclass(slots=True)
class _Sent:
    """The rows that were inserted in a session since its last commit or rollback."""

    rows: list[tuple[Forwarder, int, OutboxRow, int | None]] = field(default_factory=list)
    driver: Any = None


def note(
    session: Session, driver: Any, forwarder: Forwarder, row_id: int, row: OutboxRow, queue_id: int | None
) -> None:
    """Notes a row that was inserted in a session, through a driver's connection. Without a queue, it is not appended
    early."""
    _listen()
    sent: _Sent | None = session.info.get(_NAME)
    if sent is None:
        sent = session.info[_NAME] = _Sent()
    sent.driver = driver
    sent.rows.append((forwarder, row_id, row, queue_id))


@cache
def _listen() -> None:
    """Listens to all sessions of the process, because a listener for each one would cost more than its row."""
    event.listen(Session, "after_commit", _after_commit)
    event.listen(Session, "after_soft_rollback", _after_rollback)


def _after_commit(session: Session) -> None:
    sent: _Sent | None = session.info.get(_NAME)
    if sent is None:
        return
    is_open = _may_be_open(sent.driver)
    appends = isinstance(sent.driver, sqlite3.Connection) and not is_open and not _begins_by_itself(sent.driver)
    for forwarder, row_id, row, queue_id in sent.rows:
        if appends and queue_id is not None and _is_there(sent.driver, row_id):
            forwarder.committed(row_id, row, queue_id)
        else:
            forwarder.look()
    if not is_open:
        sent.rows.clear()


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


def _may_be_open(driver: Any) -> bool:
    """Tells whether the outermost transaction may still be open: the session may have joined one of its caller's."""
    status = getattr(driver, "server_status", None)  # As PyMySQL and its kind received it last.
    return bool(status & _IN_TRANSACTION if isinstance(status, int) else getattr(driver, "in_transaction", False))


def _after_rollback(session: Session, ended: SessionTransaction) -> None:
    sent: _Sent | None = session.info.get(_NAME)
    if sent is None or ended.nested:  # A savepoint's rollback leaves earlier rows in the transaction.
        return
    for forwarder, row_id, _, _ in sent.rows:
        forwarder.rolled_back([row_id])
    sent.rows.clear()
