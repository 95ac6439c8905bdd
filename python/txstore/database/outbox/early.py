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
from sqlalchemy.orm import Session

from txstore._native import OutboxRow
from txstore.database.outbox.forwarder import Forwarder

__all__ = ["note"]

_NAME = "txstore.database.outbox"


@dataclass(slots=True)
class _Sent:
    """The rows that were inserted in a session since its last commit or rollback."""

    rows: list[tuple[Forwarder, int, OutboxRow, bool]] = field(default_factory=list)
    driver: Any = None


def note(given: object, forwarder: Forwarder, seq: int, row: OutboxRow, *, is_first: bool) -> None:
    """Notes a row that was inserted in a session. `is_first`: no earlier row of its message group is left."""
    session = getattr(given, "sync_session", given)
    if callable(session) and not isinstance(session, Session):  # A scoped session.
        session = session()
        session = getattr(session, "sync_session", session)
    if not isinstance(session, Session):
        return
    _listen()
    sent: _Sent = session.info.setdefault(_NAME, _Sent())
    sent.driver = session.connection().connection.driver_connection
    sent.rows.append((forwarder, seq, row, is_first))


@cache
def _listen() -> None:
    """Listens to all sessions of the process, because a listener for each one would cost more than its row."""
    event.listen(Session, "after_commit", _after_commit)
    event.listen(Session, "after_rollback", _after_rollback)


def _after_commit(session: Session) -> None:
    sent: _Sent | None = session.info.get(_NAME)
    if sent is None:
        return
    driver = sent.driver
    if isinstance(driver, sqlite3.Connection) and not driver.in_transaction:
        _append(driver, sent)
    for forwarder in {id(forwarder): forwarder for forwarder, _, _, _ in sent.rows}.values():
        forwarder.look()
    if not _may_be_open(driver):
        sent.rows.clear()


def _append(driver: sqlite3.Connection, sent: _Sent) -> None:
    if getattr(driver, "autocommit", -1) is False:  # Python 3.12: a SELECT would begin a transaction.
        return
    for forwarder, seq, row, is_first in sent.rows:
        if is_first and _is_there(driver, forwarder.owner, seq):
            forwarder.committed(seq, row)


def _is_there(driver: sqlite3.Connection, owner: int, seq: int) -> bool:
    cursor = driver.cursor()
    cursor.row_factory = None
    try:
        cursor.execute("SELECT 1 FROM txstore_outbox WHERE owner = ? AND seq = ?", (owner, seq))
        return cursor.fetchone() is not None
    except sqlite3.Error:
        return False
    finally:
        cursor.close()


def _may_be_open(driver: Any) -> bool:
    """Tells whether the outermost transaction may still be open: the session may have joined one of its caller's."""
    return bool(getattr(driver, "in_transaction", False))


def _after_rollback(session: Session) -> None:
    sent: _Sent | None = session.info.get(_NAME)
    if sent is None:
        return
    for forwarder, seq, _, _ in sent.rows:
        forwarder.rolled_back([seq])
    sent.rows.clear()
