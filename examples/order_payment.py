"""Orders and payments: a database and a message, both or neither, whenever the process is killed.

The directory holds `orders.db` (SQLite) with open orders, and `orders.store`. Each order is paid or refused in the
database, and each paid one has exactly one message on the topic `order-paid`. The row of a payment has the
transaction's id, so that a check finds it. examples/demo.py kills this process.

Run `python -m examples.order_payment DIRECTORY`. After a crash, run it again: it continues.
"""

from __future__ import annotations

import argparse
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import txstore
from txstore import LocalTransactionState, Message, TransactionListener
from txstore.message import TransactionMessage

TOPIC, GROUP = "order-paid", "order-service"
THREADS = 4
# The kinds of customers; the demo assigns them by its seed.
PAYS, CANNOT_PAY, PAYS_BUT_WE_STUMBLE = "pays", "cannot pay", "pays, but we stumble"

SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'open');
CREATE TABLE payments (order_id INTEGER PRIMARY KEY, transaction_id TEXT NOT NULL UNIQUE);
"""


@contextmanager
def database(directory: Path) -> Iterator[sqlite3.Connection]:
    """Opens a new connection, because threads must not share SQLite's. Use `with` on it for one transaction."""
    with closing(sqlite3.connect(directory / "orders.db", timeout=30, isolation_level="IMMEDIATE")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        yield connection


class Payments(TransactionListener):
    """The local transaction is a payment. The check looks for the payment's row."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def execute_local_transaction(self, message: TransactionMessage, arg: tuple[int, str]) -> LocalTransactionState:
        order, customer = arg
        time.sleep(0.003)  # The bank works. If it is killed here, nothing was paid: the check answers ROLLBACK.
        with database(self._directory) as db, db:
            if customer == CANNOT_PAY:
                db.execute("UPDATE orders SET state = 'refused' WHERE id = ?", (order,))
                return LocalTransactionState.ROLLBACK
            db.execute("INSERT INTO payments VALUES (?, ?)", (order, message.transaction_id))
            db.execute("UPDATE orders SET state = 'paid' WHERE id = ?", (order,))
        time.sleep(0.003)  # If it is killed here, the order was paid and nobody was told: the check answers COMMIT.
        if customer == PAYS_BUT_WE_STUMBLE:
            return LocalTransactionState.UNKNOWN
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        with database(self._directory) as db:
            paid = db.execute("SELECT 1 FROM payments WHERE transaction_id = ?", (message.transaction_id,)).fetchone()
        return LocalTransactionState.COMMIT if paid else LocalTransactionState.ROLLBACK


def open_orders(directory: Path) -> list[tuple[int, str]]:
    """Returns orders that are neither paid nor refused."""
    with database(directory) as db:
        return db.execute("SELECT id, customer FROM orders WHERE state = 'open' ORDER BY id").fetchall()


def work(directory: Path, producer: txstore.TransactionProducer, orders: queue.SimpleQueue[tuple[int, str]]) -> None:
    """Takes orders until there is none left. One thread."""
    while True:
        try:
            order, customer = orders.get_nowait()
        except queue.Empty:
            return
        message = Message(TOPIC, f"order {order} is paid".encode(), keys=[f"order-{order}"])
        producer.send_in_transaction(message, (order, customer))


def run(directory: Path) -> int:
    """Handles all open orders, then waits until checks have settled what this run or an earlier one left open."""
    orders: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for order in open_orders(directory):
        orders.put(order)
    # RocketMQ's times are 6 s and 30 s. A demonstration should not take minutes.
    with txstore.open(directory / "orders.store", transaction_timeout=0.5, transaction_check_interval=0.5) as broker:
        producer = broker.transaction_producer(GROUP, Payments(directory))
        threads = [threading.Thread(target=work, args=(directory, producer, orders)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while broker.store.stat().pending_transactions:
            time.sleep(0.05)
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Pays open orders, and sends a message for each paid one.")
    arguments.add_argument("directory", type=Path)
    sys.exit(run(arguments.parse_args().directory))
