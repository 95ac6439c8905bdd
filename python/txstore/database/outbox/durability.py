"""Durability: warns about a database that may lose a commit whose message is in the log.

In:     a handle of a user's session.
Out:    a warning in the log.
Always: settings are only read. They belong to a session, so they are read in the user's own.
"""

import logging

from txstore.database.session import Handle
from txstore.database.statements import (
    MARIADB_SYNCHRONOUS,
    POSTGRES_SYNCHRONOUS,
    SQLITE_JOURNAL,
    SQLITE_SYNCHRONOUS,
)

__all__ = ["warn_unless_durable"]

_log = logging.getLogger("txstore.database.outbox")
_FULL, _NORMAL = 2, 1  # SQLite's PRAGMA synchronous.


async def warn_unless_durable(handle: Handle, name: str) -> None:
    """Warns if a power loss may take the session's commits. `name` is the database's."""
    why = await _why_not_durable(handle)
    if why is not None:
        _log.warning(
            "%s may lose commits with the power (%s): then a message may be in the log whose transaction is gone\n"
            "hint: SQLite: PRAGMA synchronous = FULL; PostgreSQL: synchronous_commit = on; MariaDB: "
            "innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 if it has a binary log",
            name,
            why,
        )


async def _why_not_durable(handle: Handle) -> str | None:
    dialect = await handle.dialect()
    if dialect == "mariadb":
        [(flush, has_binlog, sync)] = await handle.fetch(MARIADB_SYNCHRONOUS)
        if int(flush) not in (1, 3):
            return f"innodb_flush_log_at_trx_commit = {flush}"
        # Recovery rolls back what the binary log does not have.
        return f"sync_binlog = {sync}" if has_binlog and int(sync) != 1 else None
    if dialect == "postgresql":
        [(setting,)] = await handle.fetch(POSTGRES_SYNCHRONOUS)
        return "synchronous_commit = off" if setting == "off" else None
    [(level,)] = await handle.fetch(SQLITE_SYNCHRONOUS)
    [(journal,)] = await handle.fetch(SQLITE_JOURNAL)
    if int(level) >= (_FULL if str(journal).lower() == "wal" else _NORMAL):
        return None
    return f"PRAGMA synchronous = {level}, journal_mode = {journal}"
