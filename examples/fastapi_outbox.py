"""A web service on PostgreSQL: each request is one database transaction, and its messages are sent with its commit.

A request's session is a dependency, which commits when the handler has returned and rolls back when it raises. The
handler and the layer below it send three messages within the session's transaction: all three are published, or none.

Run `python -m examples.fastapi_outbox postgresql+asyncpg://localhost/shop DIRECTORY [--port 8000]`, then
`curl -X POST localhost:8000/orders/17/payment?amount=50`, and read with `txstore tail DIRECTORY/orders.store orders`.
"""

import argparse
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import txstore.aio
from txstore import Message
from txstore.database import AsyncOutboxProducer, Database


class Base(DeclarativeBase):
    """The service's own tables."""


class Payment(Base):
    """An order that is paid."""

    __tablename__ = "payments"
    order_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Booking(Base):
    """An amount in the ledger."""

    __tablename__ = "bookings"
    order_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    amount: Mapped[int]


class Ledger:
    """The layer below the handlers. It uses the session of its caller, and does not know who commits it."""

    def __init__(self, session: AsyncSession, producer: AsyncOutboxProducer) -> None:
        self._session = session
        self._producer = producer

    async def book(self, order_id: int, amount: int) -> None:
        """Books an amount and sends its two messages. Raises ValueError for an amount that is not positive."""
        if amount <= 0:
            raise ValueError(f"the amount must be positive, got {amount}")
        self._session.add(Booking(order_id=order_id, amount=amount))
        messages = [Message.of("ledger", {"order": order_id, "amount": amount}), Message.of("receipts", order_id)]
        await self._producer.send_batch(messages, session=self._session)


def application(database_url: str, directory: Path) -> FastAPI:
    """Creates the service on a database; its store is in a directory."""
    engine = create_async_engine(database_url)
    database = Database(engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        database.create_table()
        async with txstore.aio.open(directory / "orders.store") as broker:
            app.state.producer = broker.producer("order-service", database=database)
            yield
        await engine.dispose()

    async def transaction() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session, session.begin():
            yield session

    app = FastAPI(lifespan=lifespan)
    # With scope="function", the commit comes before the response. FastAPI's default commits after it.
    in_transaction = Depends(transaction, scope="function")

    @app.post("/orders/{order_id}/payment", status_code=201)
    async def pay(
        order_id: int, amount: int, session: Annotated[AsyncSession, in_transaction], request: Request
    ) -> dict[str, str]:
        producer: AsyncOutboxProducer = request.app.state.producer
        session.add(Payment(order_id=order_id))
        paid = Message.of("orders", order_id, tags="paid", keys=[f"order-{order_id}"])
        receipt = await producer.send(paid, session=session)
        try:
            await Ledger(session, producer).book(order_id, amount)
            await session.flush()
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        except IntegrityError:
            raise HTTPException(409, f"order {order_id} is paid already") from None
        return {"message_id": receipt.message_id}

    @app.get("/orders")
    async def orders(session: Annotated[AsyncSession, in_transaction]) -> list[int]:
        return list(await session.scalars(select(Payment.order_id).order_by(Payment.order_id)))

    return app


def serve(database_url: str, directory: Path, port: int) -> int:
    """Serves until it is interrupted. The socket is created here, so that port 0 can report its number."""
    directory.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", port)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(application(database_url, directory), log_level="warning"))
        with suppress(KeyboardInterrupt):  # Uvicorn raises it again when everything is closed.
            server.run(sockets=[listening])
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Takes payments by HTTP and sends three messages for each.")
    arguments.add_argument("database_url", help="such as postgresql+asyncpg://localhost/shop")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--port", type=int, default=8000)
    options = arguments.parse_args()
    sys.exit(serve(options.database_url, options.directory, options.port))
