"""Plain psycopg: an order, its payment and their messages are one transaction on PostgreSQL.

`connection.transaction()` is psycopg's own block; a nested one is a savepoint, which takes its messages with it. The
rows of an order are locked before its messages are sent, so the messages of one customer are in the order of their
commits (`message_group`).

Run `python -m examples.psycopg_orders postgresql://localhost/shop DIRECTORY [--orders 20]`, then read with
`txstore tail DIRECTORY/orders.store orders`.
"""

import argparse
import contextlib
import sys
from pathlib import Path

import psycopg

import txstore
from txstore import Message
from txstore.database import Database, OutboxProducer

CUSTOMERS = 3
TABLES = (
    "CREATE TABLE IF NOT EXISTS customers (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL CHECK (balance >= 0))",
    "CREATE TABLE IF NOT EXISTS payments (order_id BIGINT PRIMARY KEY, customer BIGINT NOT NULL, amount BIGINT)",
)


def pay(connection: psycopg.Connection, producer: OutboxProducer, order: int, customer: int, amount: int) -> None:
    """Pays an order from a customer's balance, with a gift if there is enough. Raises CheckViolation without money."""
    with connection.transaction():
        take = "UPDATE customers SET balance = balance - %s WHERE id = %s"
        connection.execute(take, (amount, customer))
        connection.execute("INSERT INTO payments VALUES (%s, %s, %s)", (order, customer, amount))
        group = f"customer-{customer}"
        paid = Message.of("orders", {"order": order, "amount": amount}, keys=[f"order-{order}"], message_group=group)
        producer.send(paid, session=connection)
        with contextlib.suppress(psycopg.errors.CheckViolation), connection.transaction():
            producer.send(Message.of("gifts", order, message_group=group), session=connection)
            connection.execute(take, (10 * amount, customer))


def run(url: str, directory: Path, orders: int) -> int:
    """Pays some orders and prints how many messages there are."""
    database = Database(url)
    database.create_table()
    with (
        txstore.open(directory / "orders.store") as broker,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        for table in TABLES:
            connection.execute(table)
        for customer in range(CUSTOMERS):
            connection.execute("INSERT INTO customers VALUES (%s, 100) ON CONFLICT DO NOTHING", (customer,))
        producer = broker.producer("order-service", database=database)
        refused = 0
        for order in range(orders):
            try:
                pay(connection, producer, order, order % CUSTOMERS, 1 + order % 7)
            except psycopg.errors.CheckViolation:
                refused += 1
        print(f"{orders - refused} orders paid, {refused} refused")
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Pays orders and sends their messages in the same transactions.")
    arguments.add_argument("url", help="such as postgresql://localhost/shop")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--orders", type=int, default=20)
    options = arguments.parse_args()
    sys.exit(run(options.url, options.directory, options.orders))
