"""Rows: reads the outcome from a transaction's row, and inserts the row if there is none.

In:     a handle, ids.
Out:    outcomes, and errors that name what is missing.
Always: an outcome comes from committed data.
Not here: whose connection it is.
"""

import time
from collections.abc import Callable

from txstore.database.session import Handle
from txstore.database.statements import (
    INSERT_COMMITTED,
    INSERT_ROLLED_BACK,
    MARIADB_ENGINES,
    SELECT_OUTCOME,
    SELECT_OUTCOME_NOW,
    SELECT_VERSION,
    UPDATE_BY_DIALECT,
    VERSION,
    WAIT_SHORTLY,
    Statement,
)
from txstore.errors import AlreadyEndedError, InvalidOptionError
from txstore.message import TransactionState

__all__ = ["TableError", "already", "answer", "insert", "must_have_version", "outcome_of", "table_is_missing"]

_NO_SUCH_TABLE = 1146  # MariaDB's number of the error.
_CLOCKS_MS = 3_600_000  # How far the clocks of processes that write and clean rows may differ.


class TableError(InvalidOptionError):
    """The tables are missing, have another version or belong to another database, or a row was cleaned."""

    @classmethod
    def missing(cls, where: str, table: str = "txstore_transactions") -> "TableError":
        """Returns the error for a table that does not exist."""
        return cls(
            f"there is no table {table} in {where}\n"
            "hint: call database.create_table() once, or execute txstore.database.DDL in a migration",
            option="database",
        )

    @classmethod
    def version(cls, where: str, found: int, dialect: str) -> "TableError":
        """Returns the error for tables of another version."""
        if found > VERSION:
            return cls(
                f"the tables in {where} have version {found}; this txstore knows version {VERSION}\n"
                "hint: install the txstore that updated them, or a newer one",
                option="database",
            )
        return cls(
            f"the tables in {where} have version {found}; this txstore needs version {VERSION}\n"
            "hint: call database.create_table(), or execute txstore.database.DDL again in a migration; its last "
            f"statement updates them: {UPDATE_BY_DIALECT[dialect]}",
            option="database",
        )

    @classmethod
    def engine(cls, where: str, table: str, engine: str) -> "TableError":
        """Returns the error for a table of MariaDB that has no transactions."""
        return cls(
            f"the table {table} in {where} is stored by {engine}, which has no transactions\n"
            f"hint: ALTER TABLE {table} ENGINE=InnoDB",
            option="database",
        )

    @classmethod
    def elsewhere(cls, where: str) -> "TableError":
        """Returns the error for a session on another database."""
        return cls(
            f"the session works on another database than the one that checks read ({where})\n"
            "hint: create the Database from the engine, path or URL that the session uses",
            option="session",
        )

    @classmethod
    def cleaned(cls, transaction_id: str) -> "TableError":
        """Returns the error for a transaction whose row was cleaned."""
        return cls(
            f"transaction {transaction_id} has no row, and rows of its age were cleaned, so its outcome is unknown\n"
            "hint: inspect the local transaction's own rows, then use `txstore tx commit` or `rollback`",
            option="database",
        )


def table_is_missing(error: BaseException) -> bool:
    """Tells whether a driver's error says that a txstore table, or the file of its database, is missing."""
    # SQLAlchemy has the driver's error in an attribute, Django as the cause of its own.
    causes = (getattr(error, "orig", None), error.__cause__, error)
    return any(cause is not None and _says_missing(cause) for cause in causes)


def _says_missing(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    text = str(error)
    if getattr(error, "args", ())[:1] == (_NO_SUCH_TABLE,):
        return ".txstore_" in text
    return state == "42P01" or "no such table: txstore_" in text or "unable to open database file" in text


async def must_have_version(handle: Handle, where: str) -> None:
    """Raises TableError if the tables are older or newer than this txstore's, or have no transactions."""
    dialect = await handle.dialect()
    _, found = await handle.run(SELECT_VERSION)
    others = await handle.fetch(MARIADB_ENGINES) if dialect == "mariadb" else ()
    await handle.rollback()
    version = 1 if found is None else int(found)
    if version != VERSION:
        raise TableError.version(where, version, dialect)
    for table, engine in others:
        raise TableError.engine(where, table, engine)


async def insert(handle: Handle, transaction_id: str, identity: str, where: Callable[[], str]) -> None:
    """Inserts the row "committed" in the user's own database transaction.

    `where` describes the right database. Raises AlreadyEndedError if there is a row, TableError if the session works on
    a database without that identity, and what the driver raises.
    """
    values = {"transaction_id": transaction_id, "identity": identity, "now_ms": time.time_ns() // 1_000_000}
    try:
        written, _ = await handle.run(INSERT_COMMITTED, **values)
    except Exception as error:
        if table_is_missing(error):
            raise TableError.elsewhere(where()) from error
        raise
    if written == 1:
        return
    outcome = await outcome_of(handle, transaction_id, SELECT_OUTCOME_NOW)
    if outcome is None:
        raise TableError.elsewhere(where())
    raise already(transaction_id, outcome)


def already(transaction_id: str, outcome: TransactionState) -> AlreadyEndedError:
    """Returns the error for a transaction that has a row."""
    what = {
        TransactionState.COMMITTED: (
            "its local transaction was committed before; a check commits the message if necessary"
        ),
        TransactionState.ROLLED_BACK: "a check rolled it back before its local transaction began; nothing was done",
    }[outcome]
    return AlreadyEndedError(
        f"transaction {transaction_id} has already ended, according to the database: {what}\n"
        "hint: to repeat it, create a new Message",
        outcome=outcome,
    )


async def outcome_of(
    handle: Handle, transaction_id: str, select: Statement = SELECT_OUTCOME
) -> TransactionState | None:
    """Returns the row's outcome as this session sees it; None if there is no row."""
    _, outcome = await handle.run(select, transaction_id=transaction_id)
    return None if outcome is None else TransactionState(outcome)


async def answer(
    handle: Handle, transaction_id: str, identity: str, born_ms: int, *, shortly: bool = False
) -> TransactionState:
    """Returns a transaction's outcome from its row, and inserts "rolled back" if there is none. Commits.

    Waits for anyone else who is inserting the row, because the key is unique. Raises TableError.
    """
    await handle.begin()
    if shortly and await handle.dialect() == "postgresql":  # In SQLite, the connection's busy timeout limits the wait.
        await handle.execute(WAIT_SHORTLY.named)
    await handle.run(
        INSERT_ROLLED_BACK,
        transaction_id=transaction_id,
        identity=identity,
        now_ms=time.time_ns() // 1_000_000,
        born_ms=born_ms - _CLOCKS_MS,
    )
    await handle.commit()
    await handle.begin()  # A new transaction, which sees what was committed while the insert waited.
    outcome = await outcome_of(handle, transaction_id)
    await handle.rollback()
    if outcome is None:
        raise TableError.cleaned(transaction_id)
    return outcome
