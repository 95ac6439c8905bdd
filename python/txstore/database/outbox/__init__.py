"""Outbox: messages that are rows of the user's own database transaction until they are in the log.

::

    producer.send(message, session=session)       inserts one row, in the user's transaction
            │ commit
            ├── early    after the commit of a SQLAlchemy session, in the same call
            └── forwarder   a thread of the process that wrote the row: reads it, appends its message; with a remote
                │           broker, sends it. Rows that another process left are taken over
                                │ the message is durable
                                └── deletes the row, or keeps it for a time in the table of sent rows

`producer` has what programs call, `forwarder` the thread, `early` the hooks of SQLAlchemy, `waiting` what operators
see, `pending` what a test sees of its open transaction, `unattended` what other processes left, `sent` the rows that
are kept, `durability` a warning.

Always: a row is deleted only when its message is durable in the log, and a message is appended only if its row is
committed.
"""

from txstore.database.outbox.forwarder import Forwarder
from txstore.database.outbox.pending import PendingMessage, pending_messages, seen_by_others
from txstore.database.outbox.producer import (
    AsyncOutboxProducer,
    AsyncSession,
    BlockingSession,
    OutboxProducer,
    OutboxReceipt,
)
from txstore.database.outbox.sent import LogBroker, Resent, SendsAgain, messages_in_log, send_again
from txstore.database.outbox.waiting import OutboxStatus, WaitingRow, change_parked, outbox_status, waiting_rows

__all__ = [
    "AsyncOutboxProducer",
    "AsyncSession",
    "BlockingSession",
    "Forwarder",
    "LogBroker",
    "OutboxProducer",
    "OutboxReceipt",
    "OutboxStatus",
    "PendingMessage",
    "Resent",
    "SendsAgain",
    "WaitingRow",
    "change_parked",
    "messages_in_log",
    "outbox_status",
    "pending_messages",
    "seen_by_others",
    "send_again",
    "waiting_rows",
]
