"""Celery next to txstore: a task is started if, and only if, the transaction of its order commits.

`task.delay()` within a transaction also starts the task of an order that is rolled back; after the commit, a crash
loses it. Here the transaction sends a message. A relay consumes it, gives the task to Celery, and acknowledges the
message when Celery has the task. After a crash it may give a task twice, with the same id, so the task does nothing for
an order that it has packed.

Everything is in the folder SHOP_DIRECTORY: the database, the store, and Celery's own messages as files, so that it runs
without a server. A real shop sets CELERY_BROKER_URL to its RabbitMQ or Redis.

Run `python -m examples.celery_parcels orders --count 20`, then `python -m examples.celery_parcels relay`, and
`celery --app examples.celery_parcels worker --pool solo`.
"""

import argparse
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from celery import Celery

import txstore
from txstore import Message
from txstore.database import Database

DIRECTORY = Path(os.environ.get("SHOP_DIRECTORY", "."))
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL CHECK (amount <= 100));
CREATE TABLE IF NOT EXISTS parcels (order_id INTEGER PRIMARY KEY);
"""

app = Celery("shop", broker=os.environ.get("CELERY_BROKER_URL", "filesystem://"))
app.conf.task_ignore_result = True
app.conf.task_acks_late = True  # A worker that is killed has not packed the parcel.
if app.conf.broker_url == "filesystem://":
    folders = {name: str(DIRECTORY / "celery" / name) for name in ("data", "processed", "control")}
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    app.conf.broker_transport_options = {
        "data_folder_in": folders["data"],
        "data_folder_out": folders["data"],
        "processed_folder": folders["processed"],
        "control_folder": folders["control"],
    }


def connect() -> sqlite3.Connection:
    """Connects to the shop's database."""
    connection = sqlite3.connect(DIRECTORY / "shop.db", timeout=30)
    connection.executescript(TABLES)
    return connection


@app.task(name="pack")
def pack(order_id: int) -> None:
    """Packs the parcel of an order, once."""
    with closing(connect()) as connection, connection:
        connection.execute("INSERT OR IGNORE INTO parcels VALUES (?)", (order_id,))


def take_orders(count: int) -> None:
    """Takes orders. Those with an amount above 100 are refused by the database, after their message was sent."""
    database = Database(DIRECTORY / "shop.db")
    database.create_table()
    taken = 0
    with txstore.open(DIRECTORY / "shop.store") as broker, closing(connect()) as connection:
        producer = broker.producer("orders", database=database)
        for order_id in range(count):
            try:
                with connection:
                    connection.execute("BEGIN")
                    producer.send(Message.of("orders", order_id), session=connection)
                    connection.execute("INSERT INTO orders VALUES (?, ?)", (order_id, order_id * 37 % 150))
                    taken += 1
            except sqlite3.IntegrityError:
                continue
    print(f"{taken} orders taken, {count - taken} refused")


def relay() -> None:
    """Gives Celery the task of each order that was committed."""
    started = 0
    with txstore.open(DIRECTORY / "shop.store") as broker, broker.consumer("parcels", "orders") as consumer:
        while messages := consumer.poll(32, timeout=1):
            for message in messages:
                pack.apply_async((message.value(int),), task_id=message.message_id)
                message.ack()
                started += 1
    print(f"{started} tasks started")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Takes orders, and starts a task for each that was committed.")
    commands = arguments.add_subparsers(dest="command", required=True)
    commands.add_parser("orders").add_argument("--count", type=int, default=20)
    commands.add_parser("relay")
    options = arguments.parse_args()
    if options.command == "orders":
        take_orders(options.count)
    else:
        relay()
