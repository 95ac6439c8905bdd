"""A check after a restart: a service crashes between its database and its message, and is asked after the restart.

The service keeps `shop.db` and `orders.store` in a directory. The row of a payment has the transaction's id, so the
check can find it. `txstore.database` writes such a row and answers the check for you: examples/database_orders.py.

Run `python -m examples.check_after_restart DIRECTORY`. It starts itself as the service that crashes.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import txstore
from txstore import LocalTransactionState, Message, TransactionListener, TransactionMessage

TOPIC, GROUP = "order-paid", "order-service"
DIED = 9


class Payments(TransactionListener):
    """Pays an order, and answers the check by looking for the payment."""

    def __init__(self, directory: Path, dies: bool) -> None:
        self._path = directory / "shop.db"
        self._dies = dies
        with closing(sqlite3.connect(self._path)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS payments (order_id INTEGER PRIMARY KEY, transaction_id TEXT UNIQUE)")

    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute("INSERT INTO payments VALUES (?, ?)", (arg, message.transaction_id))
        if self._dies:
            os._exit(DIED)  # As by kill -9: the order is paid, and nobody was told.
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        with closing(sqlite3.connect(self._path)) as db:
            sql = "SELECT 1 FROM payments WHERE transaction_id = ?"
            paid = db.execute(sql, (message.transaction_id,)).fetchone() is not None
        answer = LocalTransactionState.COMMIT if paid else LocalTransactionState.ROLLBACK
        print(f"checked: {message.body.decode()}? {answer.name}", flush=True)
        return answer


def pay(directory: Path, order_id: int, dies: bool) -> None:
    """Runs the service for one order."""
    with txstore.open(directory / "orders.store") as broker:
        producer = broker.transaction_producer(GROUP, Payments(directory, dies))
        message = Message(TOPIC, f"order {order_id} is paid".encode(), keys=[f"order-{order_id}"])
        producer.send_in_transaction(message, order_id)


def recover(directory: Path) -> None:
    """Starts the service again. Any producer of the group is asked. RocketMQ's first check comes after 6 s."""
    with txstore.open(directory / "orders.store", transaction_timeout=0.2) as broker:
        print(f"open after the restart: {len(broker.transactions())}", flush=True)
        broker.transaction_producer(GROUP, Payments(directory, dies=False))
        while broker.transactions():
            time.sleep(0.02)
        with broker.consumer("shipping", TOPIC) as consumer:
            for message in consumer.poll(timeout=5):
                print(f"shipping heard: {message.body.decode()}", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description="A service crashes between its database and its message.")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--die-paying", type=int, metavar="ORDER", help="run as the service that crashes")
    options = arguments.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.die_paying is not None:
        pay(options.directory, options.die_paying, dies=True)
        return 0
    command = [sys.executable, "-m", "examples.check_after_restart", str(options.directory), "--die-paying", "17"]
    died = subprocess.run(command, check=False).returncode
    print(f"the service ended with {died}", flush=True)
    recover(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
