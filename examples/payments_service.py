"""A web service whose messages a Spark job reads over the network: the first half of a data pipeline.

Each POST is one transaction of the service's own database, with the payment's message in it: both or neither. The
service serves its store at an address, so the job needs no access to this machine's disk. The other half is
spark/payments_to_lake.py, which keeps the payments in Parquet and prints a report.

Run `python -m examples.payments_service DIRECTORY [--port 8000] [--brokers 127.0.0.1:9876]`, then
`curl -X POST 'localhost:8000/orders/17/payment?amount=50'`, and
`spark-submit spark/payments_to_lake.py 127.0.0.1:9876 lake/payments`.
"""

import argparse
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import txstore
from txstore import Message
from txstore.database import Database, OutboxProducer

TOPIC = "payments"


class Base(DeclarativeBase):
    """The service's own tables."""


class Payment(Base):
    """An order that is paid."""

    __tablename__ = "payments"
    order_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    amount: Mapped[int]


@dataclass
class Paid:
    """The message of a payment."""

    order_id: int
    amount: int


def application(directory: Path, brokers: str) -> FastAPI:
    """Creates the service on a directory. It serves its store at `brokers`, the address of a name server."""
    engine = create_engine(f"sqlite:///{directory / 'payments.db'}", connect_args={"timeout": 30})
    database = Database(engine)
    producer: OutboxProducer

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal producer
        Base.metadata.create_all(engine)
        database.create_table()
        with txstore.serve(directory / "payments.store", listen="127.0.0.1:0", name_server=brokers) as server:
            producer = server.broker.producer("payment-service", database=database)
            yield
        engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{order_id}/payment", status_code=201)
    def pay(order_id: int, amount: int) -> dict[str, int]:
        try:
            with Session(engine) as session, session.begin():
                session.add(Payment(order_id=order_id, amount=amount))
                message = Message.of(TOPIC, Paid(order_id, amount), keys=[f"order-{order_id}"])
                producer.send(message, session=session)
        except IntegrityError:
            raise HTTPException(409, f"order {order_id} is paid already") from None
        return {"order_id": order_id, "amount": amount}

    return app


def serve(directory: Path, port: int, brokers: str) -> int:
    """Serves until it is interrupted. The socket is created here, so that port 0 can report its number."""
    directory.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", port)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(application(directory, brokers), log_level="warning"))
        with suppress(KeyboardInterrupt):  # Uvicorn raises it again when everything is closed.
            server.run(sockets=[listening])
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Takes payments by HTTP and serves their messages.")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--port", type=int, default=8000)
    arguments.add_argument("--brokers", default="127.0.0.1:9876", help="where the store is served")
    options = arguments.parse_args()
    sys.exit(serve(options.directory, options.port, options.brokers))
