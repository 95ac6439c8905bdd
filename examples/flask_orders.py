"""A Flask app with SQLAlchemy: each request is one database transaction, and its messages are sent with its commit.

The session of a request commits before the response is sent, and rolls back if the view raises. The store is opened by
the first request of a process, also after a fork, and shared with the other processes, so a server with several workers
needs nothing else.

Run `python -m examples.flask_orders sqlite:///shop.db DIRECTORY [--port 8000]`, then
`curl -X POST localhost:8000/orders/17/payment`, and read with `txstore tail DIRECTORY/orders.store orders`. With
gunicorn: `gunicorn 'examples.flask_orders:application("sqlite:///shop.db", "DIRECTORY")'`.
"""

import argparse
import atexit
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from flask import Flask, abort, jsonify
from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from werkzeug.serving import make_server

import txstore
from txstore import Message
from txstore.database import Database, OutboxProducer


class Base(DeclarativeBase):
    """The app's own tables."""


class Payment(Base):
    """An order that is paid."""

    __tablename__ = "payments"
    order_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def application(database_url: str, directory: str) -> Flask:
    """Creates the app on a database; its store is in a directory."""
    app = Flask(__name__)
    engine = create_engine(database_url)
    database = Database(engine)
    opening = threading.Lock()

    @cache
    def opened() -> OutboxProducer:
        Base.metadata.create_all(engine)
        database.create_table()
        broker = txstore.open(Path(directory) / "orders.store", shared=True)
        atexit.register(broker.close)
        return broker.producer("order-service", database=database)

    def producer() -> OutboxProducer:
        with opening:
            return opened()

    @contextmanager
    def transaction() -> Iterator[Session]:
        producer()
        with Session(engine) as session, session.begin():
            yield session

    @app.post("/orders/<int:order>/payment")
    def pay(order: int) -> Any:
        try:
            with transaction() as session:
                session.add(Payment(order_id=order))
                paid = Message.of("orders", order, tags="paid", keys=[f"order-{order}"])
                receipt = producer().send(paid, session=session)
                producer().send(Message.of("receipts", order), session=session)
        except IntegrityError:
            abort(409)
        return jsonify(message_id=receipt.message_id), 201

    @app.get("/orders")
    def orders() -> Any:
        with transaction() as session:
            return jsonify(list(session.scalars(select(Payment.order_id).order_by(Payment.order_id))))

    return app


def serve(database_url: str, directory: str, port: int) -> int:
    """Serves until it is interrupted."""
    server = make_server("127.0.0.1", port, application(database_url, directory), threaded=True)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Takes payments by HTTP and sends two messages for each.")
    arguments.add_argument("database_url", help="such as sqlite:///shop.db or postgresql+psycopg://localhost/shop")
    arguments.add_argument("directory")
    arguments.add_argument("--port", type=int, default=8000)
    options = arguments.parse_args()
    sys.exit(serve(options.database_url, options.directory, options.port))
