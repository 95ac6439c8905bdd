"""A Litestar service with SQLAlchemy: each request is one transaction, and its messages are sent with its commit.

The session is a dependency, which commits when the handler has returned, before the response, and rolls back when the
handler raises.

Run `python -m examples.litestar_orders sqlite+aiosqlite:///shop.db DIRECTORY [--port 8000]`, then
`curl -X POST localhost:8000/orders/17/payment`, and read with `txstore tail DIRECTORY/orders.store orders`.
"""

import argparse
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from litestar import Litestar, get, post
from litestar.datastructures import State
from litestar.exceptions import ClientException
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


@post("/orders/{order_id:int}/payment")
async def pay(order_id: int, session: AsyncSession, state: State) -> dict[str, str]:
    """Pays an order and sends two messages, all or nothing."""
    producer: AsyncOutboxProducer = state.producer
    session.add(Payment(order_id=order_id))
    paid = Message.of("orders", order_id, tags="paid", keys=[f"order-{order_id}"])
    receipt = await producer.send(paid, session=session)
    await producer.send(Message.of("receipts", order_id), session=session)
    try:
        await session.flush()
    except IntegrityError:
        raise ClientException(f"order {order_id} is paid already", status_code=409) from None
    return {"message_id": receipt.message_id}


@get("/orders")
async def orders(session: AsyncSession) -> list[int]:
    """Returns the orders that are paid."""
    return list(await session.scalars(select(Payment.order_id).order_by(Payment.order_id)))


def application(database_url: str, directory: Path) -> Litestar:
    """Creates the service on a database; its store is in a directory."""
    engine = create_async_engine(database_url)
    database = Database(engine)

    @asynccontextmanager
    async def opened(app: Litestar) -> AsyncIterator[None]:
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

    return Litestar([pay, orders], dependencies={"session": transaction}, lifespan=[opened])


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
    arguments = argparse.ArgumentParser(description="Takes payments by HTTP and sends two messages for each.")
    arguments.add_argument("database_url", help="such as sqlite+aiosqlite:///shop.db")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--port", type=int, default=8000)
    options = arguments.parse_args()
    sys.exit(serve(options.database_url, options.directory, options.port))
