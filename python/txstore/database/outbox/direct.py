"""Direct: inserts a row through a sqlite3 connection in one step, because the steps that all drivers share take longer
than the INSERT.

In:     a row without a message group, and a connection whose transaction has begun.
Out:    a row of the table, in that transaction.
Always: it does what the general way does (`producer`), and leaves to that what needs more than an INSERT: a producer's
        first row, and sessions and rows that must be refused.
"""

import re
import sqlite3

from txstore._native import OutboxRow
from txstore.database.outbox.forwarder import Forwarder
from txstore.database.rows import TableError, table_is_missing
from txstore.database.statements import INSERT_OUTBOX

__all__ = ["insert_directly"]

_INSERT = re.sub(r":\w+", "?", INSERT_OUTBOX.sqlite)  # sqlite3 looks up each name again, for each row.


def insert_directly(forwarder: Forwarder, session: object, row: OutboxRow, queue_id: int | None) -> bool:
    """Inserts a row whose message goes to a queue. Returns False, and does nothing, if the general way must do it.

    Raises TableError, and what the driver raises.
    """
    if type(session) is not sqlite3.Connection or row.message_group is not None or forwarder.checks_durability:
        return False
    try:
        if not session.in_transaction:
            return False
    except sqlite3.ProgrammingError:
        return False
    row_id, database = forwarder.new_id(), forwarder.database
    values = (row_id, forwarder.destination, database.identity(), row.data)
    try:
        cursor = session.execute(_INSERT, values)
    except Exception as error:
        if table_is_missing(error):
            raise TableError.elsewhere(database.forget_identity()) from error
        raise
    if cursor.rowcount != 1:
        return False
    for statement in forwarder.inserted(row_id, row, 0, queue_id, has_hook=False):
        session.execute(statement)
    return True
