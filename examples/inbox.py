"""An inbox: a shipping service that packs each paid order once, however often its message is delivered.

It reads the messages of examples/database_orders.py in the same directory, and creates `shipping.db` there. The row
that says a message was handled commits together with the parcel.

Run `python -m examples.inbox DIRECTORY`; `--again` starts from the first message, as after lost offsets.
"""

import argparse
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import txstore
from examples.database_orders import TOPIC
from txstore.database import Database

GROUP = "shipping"


def run(directory: Path, again: bool) -> int:
    path = directory / "shipping.db"
    database = Database(path)
    database.create_table()
    inbox = database.inbox(GROUP)
    heard = packed = 0
    with closing(sqlite3.connect(path)) as connection, txstore.open(directory / "orders.store") as broker:
        connection.execute("CREATE TABLE IF NOT EXISTS parcels (order_key TEXT NOT NULL UNIQUE)")
        if again:
            for queue_id in broker.read_queues(TOPIC):
                broker.set_consumer_offset(TOPIC, GROUP, queue_id, 0)
        with broker.consumer(GROUP, TOPIC) as consumer:
            while messages := consumer.poll(32, timeout=0.2):
                for message in messages:
                    heard += 1
                    with inbox.handle(message, connection) as first:
                        if first:
                            connection.execute("INSERT INTO parcels VALUES (?)", (message.keys[0],))
                            packed += 1
        parcels = connection.execute("SELECT count(*) FROM parcels").fetchone()[0]
    print(f"heard of {heard}, packed {packed}; {parcels} parcels")
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Packs a parcel for each paid order, once.")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--again", action="store_true", help="start from the first message")
    options = arguments.parse_args()
    sys.exit(run(options.directory, options.again))
