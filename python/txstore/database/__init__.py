"""Checks answered by the user's own database: a row tells how a local transaction ended.

::

    database = Database(engine)                   # or a path of SQLite, a postgresql:// URL, a function that connects
    database.create_table()                       # once; or DDL, DDL_SQLITE in a migration
    producer = broker.transaction_producer("order-service", database=database)

    with Session(engine) as session, producer.transaction(message, session=session):
        session.add(order)                        # leaving commits the session, then the message

In:     sessions and connections of sqlite3, SQLAlchemy 2 and psycopg 3.
Out:    blocks for producers, answers to checks, and an `Inbox` for consumers.
Always: a transaction's row is committed exactly if its message is. `import txstore` loads none of this, and importing
        this loads no driver.
"""

from txstore.database.database import Database
from txstore.database.inbox import Inbox
from txstore.database.rows import TableError
from txstore.database.statements import DDL, DDL_SQLITE

__all__ = ["DDL", "DDL_SQLITE", "Database", "Inbox", "TableError"]
