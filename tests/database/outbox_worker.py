"""A program that sends messages within its own transactions, through a broker in another process; tests kill it.

Arguments: the database, the store's directory (opened with `shared=True`) or a broker's address, the first order's
number, how many transactions, a seed. Each committed order has one message with its number; every other order and
message is rolled back. With a count of 0 it continues until it is killed.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from typing import Any

import psycopg

import txstore
from txstore import Message
from txstore.database import Database
from txstore.database.outbox import OutboxProducer

__all__ = ["connected", "work"]

_GROUPS = 3


def connected(address: str) -> Any:
    """A session of the user. It waits for the locks of other processes."""
    if address.startswith("postgresql"):
        return psycopg.connect(address)
    return sqlite3.connect(address, timeout=120, isolation_level="IMMEDIATE")


def work(session: Any, producer: OutboxProducer, number: int, chance: random.Random) -> None:
    """One transaction: an order with its message, perhaps others in a savepoint that rolls back."""

    def order(number: int) -> None:
        session.execute(f"INSERT INTO orders VALUES ({number}, 'x')")
        group = f"group-{number % _GROUPS}" if number % 7 == 0 else None
        producer.send(Message("orders", b"%d" % number, message_group=group), session=session)

    order(number)
    if chance.random() < 0.2:
        session.execute("SAVEPOINT inner_one")
        order(number + 500_000)
        session.execute("ROLLBACK TO SAVEPOINT inner_one")
    if chance.random() < 0.2:
        session.rollback()
    else:
        session.commit()


def _main(address: str, to: str, first: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    broker = txstore.open(to, shared=True) if to.startswith("/") else txstore.connect(to)
    with broker:
        producer = broker.producer("order-service", database=Database(address))
        session = connected(address)
        print("open", flush=True)
        for number in range(first, first + (count or 400_000)):
            work(session, producer, number, chance)
        session.close()
        print("committed", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
