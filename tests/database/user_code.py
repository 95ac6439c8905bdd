"""User code with types: never run, but `mypy --strict` must accept it, for every kind of session."""

import sqlite3

import aiosqlite
import psycopg
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import txstore
from txstore import Message, StoredMessage, Transaction
from txstore.database import Database, Inbox, PendingMessage

FROM_PATH = Database("orders.db")
FROM_URL = Database("postgresql://localhost/orders")
FROM_ENGINE = Database(create_engine("sqlite:///orders.db"))
FROM_ASYNC_ENGINE = Database(create_async_engine("sqlite+aiosqlite:///orders.db"))
FROM_CALL = Database(lambda: psycopg.connect("dbname=orders"))
FROM_SQLITE_CALL = Database(lambda: sqlite3.connect("orders.db"))


def pay(
    broker: txstore.EmbeddedBroker,
    session: sqlite3.Connection | Session | Connection | psycopg.Connection,
    scoped: scoped_session[Session],
) -> str:
    producer = broker.transaction_producer("order-service", database=FROM_ENGINE)
    with producer.transaction(Message("orders", b"x"), session=scoped):
        pass
    with producer.transaction(Message("orders", b"x"), session=session) as tx:
        block: Transaction = tx
        tx.rollback()
    return block.transaction_id


async def pay_async(
    producer: txstore.TransactionProducer, session: AsyncSession | AsyncConnection | psycopg.AsyncConnection
) -> str:
    async with producer.transaction(Message("orders", b"x"), session=session) as tx:
        return tx.transaction_id


def handle(inbox: Inbox, message: StoredMessage, sessions: sessionmaker[Session]) -> bool:
    with sessions() as session, inbox.handle(message, session) as first:
        return first


def pending(
    database: Database,
    session: sqlite3.Connection | Session | Connection | psycopg.Connection,
    scoped: scoped_session[Session],
) -> list[bytes]:
    messages: list[PendingMessage] = database.pending(session) + database.pending(scoped)
    return [message.body for message in messages]


async def pending_async(
    database: Database, session: AsyncSession | AsyncConnection | psycopg.AsyncConnection | aiosqlite.Connection
) -> list[bytes]:
    return [message.body for message in await database.pending(session)]
