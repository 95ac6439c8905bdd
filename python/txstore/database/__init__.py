"""Messages and database transactions: both, or neither.

::

    database = Database(engine)                   # or a path of SQLite, a postgresql:// URL, a function that connects
    database.create_table()                       # once; or DDL, DDL_SQLITE in a migration

    producer = broker.producer("order-service", database=database)
    with Session(engine) as session, session.begin():
        session.add(order)
        producer.send(message, session=session)   # a row of your transaction; you commit

    producer = broker.transaction_producer("order-service", database=database)
    with Session(engine) as session, producer.transaction(message, session=session):
        session.add(order)                        # leaving commits the session, then the message

In:     sessions and connections of sqlite3, aiosqlite, psycopg 3, asyncpg and SQLAlchemy 2.
Out:    producers within a transaction, blocks, answers to checks, and an `Inbox` for consumers.
Always: a transaction's row is committed exactly if its message is. `import txstore` loads none of this, and importing
        this loads no driver.
"""

from txstore.database.database import Database
from txstore.database.inbox import Inbox
from txstore.database.outbox import AsyncOutboxProducer, OutboxProducer, OutboxReceipt, PendingMessage, Resent
from txstore.database.reconcile import MissingTransaction
from txstore.database.rows import TableError
from txstore.database.statements import DDL, DDL_MARIADB, DDL_SQLITE

__all__ = [
    "DDL",
    "DDL_MARIADB",
    "DDL_SQLITE",
    "AsyncOutboxProducer",
    "Database",
    "Inbox",
    "MissingTransaction",
    "OutboxProducer",
    "OutboxReceipt",
    "PendingMessage",
    "Resent",
    "TableError",
]
