"""A web service: one POST pays an order in the database and sends its message, both or neither.

It shows blocking handlers, a block that commits the session and the message, and a consumer in the same process, which
packs a parcel for each paid order, once. In examples/fastapi_outbox.py, a request-scoped session sends its messages. It
listens on the loopback and keeps `DIRECTORY/orders.db` and `DIRECTORY/orders.store`. The store is opened and closed
with the application. One process writes it, so the service runs one worker.

Run `python -m examples.fastapi_service DIRECTORY [--port 8000]`, then `curl -X POST localhost:8000/orders/17/payment`.
"""

import argparse
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import txstore
from txstore import Message, ReceivedMessage
from txstore.database import Database

TOPIC = "order-paid"


class Base(DeclarativeBase):
    """The service's own tables."""


class Payment(Base):
    """An order that is paid."""

    __tablename__ = "payments"
    order_id: Mapped[int] = mapped_column(primary_key=True)


class Parcel(Base):
    """An order that is packed."""

    __tablename__ = "parcels"
    order_id: Mapped[int] = mapped_column(primary_key=True)


def application(directory: Path) -> FastAPI:
    """Creates the service on a directory."""
    engine = create_engine(f"sqlite:///{directory / 'orders.db'}", connect_args={"timeout": 30})
    database = Database(engine)
    broker: txstore.EmbeddedBroker
    producer: txstore.TransactionProducer

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal broker, producer
        Base.metadata.create_all(engine)
        database.create_table()
        # RocketMQ's first check comes after 6 s. A web service's database can answer sooner.
        with txstore.open(directory / "orders.store", transaction_timeout=1) as broker:
            producer = broker.transaction_producer("order-service", database=database)
            consumer = broker.consumer("shipping", TOPIC)
            packing = threading.Thread(target=consumer.run, args=(pack,), kwargs={"threads": 1})
            packing.start()
            yield
            consumer.close()
            packing.join()
        engine.dispose()

    def pack(message: ReceivedMessage) -> None:
        """Packs an order. Delivery is at least once; the inbox makes it once."""
        with Session(engine) as session, database.inbox("shipping").handle(message, session) as first:
            if first:
                session.add(Parcel(order_id=int(message.body)))

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{order_id}/payment", status_code=201)
    def pay(order_id: int) -> dict[str, str]:
        message = Message(TOPIC, str(order_id).encode(), keys=[f"order-{order_id}"])
        try:
            with Session(engine) as session, producer.transaction(message, session=session) as tx:
                session.add(Payment(order_id=order_id))
        except IntegrityError:
            raise HTTPException(409, f"order {order_id} is paid already") from None
        return {"transaction_id": tx.transaction_id}

    @app.get("/orders")
    def orders() -> dict[str, list[int]]:
        with Session(engine) as session:
            paid, packed = (session.scalars(select(table.order_id)).all() for table in (Payment, Parcel))
            return {"paid": sorted(paid), "packed": sorted(packed)}

    return app


def serve(directory: Path, port: int) -> int:
    """Serves until it is interrupted. The socket is created here, so that port 0 can report its number."""
    directory.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", port)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(application(directory), log_level="warning"))
        with suppress(KeyboardInterrupt):  # Uvicorn raises it again when everything is closed.
            server.run(sockets=[listening])
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Takes payments by HTTP and packs a parcel for each.")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--port", type=int, default=8000)
    options = arguments.parse_args()
    sys.exit(serve(options.directory, options.port))
