"""A program that sends messages within its own transactions, through a broker in another process; tests kill it.

Arguments: the database (after `django:`, it uses Django's connections), the store's directory (opened with
`shared=True`) or a broker's address, the first order's number, how many transactions, a seed, and how many seconds rows
of others must have waited, if not the default. Each committed order has one message with its number; every other order
and message is rolled back. With a count of 0 it continues until it is killed.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from sqlalchemy import NullPool, create_engine

import txstore
from tests.database import django_kind
from tests.database.conftest import SMALL
from txstore import Message, errors
from txstore.client import outbox_log
from txstore.database import Database
from txstore.database.outbox import OutboxProducer

__all__ = ["connected", "execute", "group_of", "source_of", "work"]

_GROUPS = 3
_DJANGO = "django:"


def connected(address: str) -> Any:
    """A session of the user. It waits for the locks of other processes."""
    if address.startswith(_DJANGO):
        return django_kind.atomic_session(django_kind.alias_of(address.removeprefix(_DJANGO)))
    if address.startswith("postgresql"):
        return psycopg.connect(address)
    if address.startswith("mysql"):
        return create_engine(address, poolclass=NullPool).connect()
    return sqlite3.connect(address, timeout=120, isolation_level="IMMEDIATE")


def source_of(address: str) -> Any:
    """What a `Database` is made from."""
    if not address.startswith(_DJANGO):
        return address
    from txstore.database.django import Alias

    return Alias(django_kind.alias_of(address.removeprefix(_DJANGO)))


def execute(session: Any, sql: str) -> None:
    getattr(session, "exec_driver_sql", session.execute)(sql)


def group_of(number: int) -> str | None:
    """The message group of an order's message."""
    return f"group-{number % _GROUPS}" if number % 7 == 0 else None


def work(session: Any, producer: OutboxProducer, number: int, chance: random.Random, pause: float = 0.0) -> None:
    """One transaction: an order with its message, perhaps others in a savepoint that rolls back. `pause` is how many
    seconds it lasts at least."""

    def order(number: int) -> None:
        execute(session, f"INSERT INTO orders VALUES ({number}, 'x')")
        producer.send(Message("orders", b"%d" % number, message_group=group_of(number)), session=session)

    order(number)
    if chance.random() < 0.2:
        execute(session, "SAVEPOINT inner_one")
        order(number + 500_000)
        execute(session, "ROLLBACK TO SAVEPOINT inner_one")
    time.sleep(pause)
    if chance.random() < 0.2:
        session.rollback()
    else:
        session.commit()


@contextmanager
def _opened(to: str, database: Database) -> Iterator[OutboxProducer]:
    """A producer, as soon as the broker answers."""
    while True:
        try:
            with ExitStack() as opened:
                broker = opened.enter_context(
                    txstore.open(to, shared=True, **SMALL) if to.startswith("/") else txstore.connect(to)
                )
                producer = broker.producer("order-service", database=database)
                after = opened.pop_all()
            break
        except (errors.BrokerUnreachableError, errors.BrokerTimeoutError):
            time.sleep(0.1)
    with after:
        yield producer


def _main(address: str, to: str, first: int, count: int, seed: int, take_over_seconds: float) -> None:
    logging.basicConfig(level=logging.INFO)
    outbox_log._TAKE_OVER_SECONDS = take_over_seconds
    chance = random.Random(seed)
    long = 2 * take_over_seconds if "://" in address else 0.0  # SQLite's others would wait for it.
    with _opened(to, Database(source_of(address))) as producer:
        session = connected(address)
        print("open", flush=True)
        for number in range(first, first + (count or 400_000)):
            work(session, producer, number, chance, long if chance.random() < 0.003 else 0.0)
        session.close()
        print("committed", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    default = outbox_log._TAKE_OVER_SECONDS
    _main(
        sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]),
        float(sys.argv[6]) if len(sys.argv) > 6 else default,
    )  # fmt: skip
