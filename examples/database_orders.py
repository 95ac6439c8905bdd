"""Orders and payments with the database helper: no listener, and the database answers the check.

The directory holds `orders.db` (SQLite) and `orders.store`, created if necessary. Each open order is paid or refused,
and each paid one has exactly one message. If you kill the program anywhere and run it again, it continues. Compare
examples/order_payment.py, where row and check are written by hand.

Run `python -m examples.database_orders DIRECTORY [--orders 20]`.
"""

import argparse
import sys
import time
from pathlib import Path

from sqlalchemy import ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import txstore
from txstore import Message, TransactionProducer
from txstore.database import Database

TOPIC, GROUP = "order-paid", "order-service"


class Base(DeclarativeBase):
    """The user's own tables."""


class Order(Base):
    """An order that a customer wants to pay."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    state: Mapped[str] = mapped_column(default="open")


class Payment(Base):
    """A payment."""

    __tablename__ = "payments"
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), primary_key=True)
    amount: Mapped[int]


class NoMoneyError(Exception):
    """The customer cannot pay."""


def pay(session: Session, producer: TransactionProducer, order_id: int) -> None:
    """Pays an order and sends its message, both or neither."""
    message = Message(TOPIC, f"order {order_id} is paid".encode(), keys=[f"order-{order_id}"])
    with producer.transaction(message, session=session):
        order = session.get_one(Order, order_id)
        order.state = "paid"
        session.add(Payment(order_id=order_id, amount=order.amount))
        if order.amount > 100:
            raise NoMoneyError  # Rolls back both.


def run(directory: Path, orders: int) -> int:
    engine = create_engine(f"sqlite:///{directory / 'orders.db'}", connect_args={"timeout": 30})
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    Base.metadata.create_all(engine)
    database = Database(engine)
    database.create_table()
    with Session(engine) as session, session.begin():
        known = set(session.scalars(select(Order.id)))
        session.add_all(
            Order(id=number, amount=number * 37 % 130) for number in range(1, orders + 1) if number not in known
        )
    # RocketMQ's times are 6 s and 30 s. An example should not take minutes.
    with (
        txstore.open(directory / "orders.store", transaction_timeout=0.2, transaction_check_interval=0.2) as broker,
        Session(engine) as session,
    ):
        producer = broker.transaction_producer(GROUP, database=database)
        for order_id in session.scalars(select(Order.id).where(Order.state == "open")).all():
            try:
                pay(session, producer, order_id)
            except NoMoneyError:
                session.get_one(Order, order_id).state = "refused"
                session.commit()
        while broker.stat().pending_transactions:  # Checks settle what an earlier run left open.
            time.sleep(0.02)
        states = session.scalars(select(Order.state)).all()
    print(f"{states.count('paid')} orders paid, {states.count('refused')} refused")
    engine.dispose()
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Pays open orders, and sends a message for each paid one.")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--orders", type=int, default=20)
    options = arguments.parse_args()
    sys.exit(run(options.directory, options.orders))
