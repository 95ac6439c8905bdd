"""Early: appends a message in the call that commits a SQLAlchemy session, where that is cheap and certain.

In:     the sessions in which rows were inserted.
Out:    messages that are visible when `commit()` returns, on SQLite; elsewhere, the forwarder looks at once.
Not here: when a message may be appended (`committed`); sessions of other kinds.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from txstore._native import OutboxRow
from txstore.database.outbox.committed import append_early, may_be_open
from txstore.database.outbox.forwarder import Forwarder

__all__ = ["note"]

_NAME = "txstore.database.outbox"


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
    for forwarder, row_id, row, queue_id in sent.rows:
        append_early(forwarder, row_id, row, queue_id, sent.driver)
    if not may_be_open(sent.driver):
        sent.rows.clear()


def _after_rollback(session: Session, ended: SessionTransaction) -> None:
    sent: _Sent | None = session.info.get(_NAME)
    if sent is None or ended.nested:  # A savepoint's rollback leaves earlier rows in the transaction.
        return
    for forwarder, row_id, _, _ in sent.rows:
        forwarder.rolled_back([row_id])
    sent.rows.clear()
