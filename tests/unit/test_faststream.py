"""Guards the FastStream broker: handlers get what was published, once it is committed; a handler that raises gets its
message again; tests run without a store; AsyncAPI and FastAPI know its subscribers and publishers.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("faststream", reason="FastStream is not installed: requirements-dev.lock")

from faststream import AckPolicy, Context
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.specification.asyncapi import AsyncAPI
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import txstore
import txstore.aio
from tests.unit.pages import follow
from txstore.database import Database
from txstore.faststream import TestTxStoreBroker, TxStoreBroker, TxStoreMessage, TxStoreResponse

_PATIENT_SECONDS = 120.0


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test that is a coroutine."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Order(BaseModel):
    number: int


def on(path: Path, **options: Any) -> TxStoreBroker:
    return TxStoreBroker(lambda: txstore.aio.open(path / "orders.store"), group="shop", **options)


async def until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), _PATIENT_SECONDS)


@on_loop
async def test_handler_gets_what_is_published_and_its_answer_is_published(tmp_path: Path) -> None:
    broker, done, found = on(tmp_path), asyncio.Event(), []

    @broker.subscriber("orders", tags="paid")
    @broker.publisher("shipments", tags="new")
    async def ship(order: Order) -> dict[str, int]:
        return {"shipment": order.number}

    @broker.subscriber("shipments", group="mail")
    async def mail(body: dict[str, int], message: Annotated[TxStoreMessage, Context("message")]) -> None:
        found.append((body, message.raw_message.tags, message.correlation_id))
        done.set()

    async with broker:
        await broker.start()
        await broker.publish(Order(number=16), "orders", tags="draft")
        sent = await broker.publish(Order(number=17), "orders", tags="paid", keys=["o-17"], correlation_id="c-1")
        await until(done)
    assert found == [({"shipment": 17}, "new", "c-1")]
    with txstore.open(tmp_path / "orders.store", read_only=True) as store:
        (stored,) = store.query("orders", "o-17")
    assert (stored.message_id, json.loads(stored.body)) == (sent.message_id, {"number": 17})
    assert (stored.properties["content-type"], stored.properties["correlation-id"]) == ("application/json", "c-1")


@on_loop
async def test_message_within_a_session_is_published_with_its_commit(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    database = Database(engine)
    database.create_table()
    broker, done, found = on(tmp_path, database=database), asyncio.Event(), []

    @broker.subscriber("orders")
    async def handle(order: Order) -> None:
        found.append(order.number)
        done.set()

    async with broker:
        await broker.start()
        async with AsyncSession(engine) as session:
            await broker.publish(Order(number=1), "orders", session=session)
            await session.rollback()
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("CREATE TABLE payments (id)"))
            await broker.publish(Order(number=2), "orders", session=session)
            assert found == []
        await until(done)
    await engine.dispose()
    assert found == [2]


@pytest.mark.parametrize("policy", [None, AckPolicy.REJECT_ON_ERROR])
@on_loop
async def test_message_of_a_handler_that_raises_is_not_lost(policy: AckPolicy | None, tmp_path: Path) -> None:
    broker, called = on(tmp_path), asyncio.Event()
    options = {} if policy is None else {"ack_policy": policy}

    @broker.subscriber("orders", **options)
    async def handle(order: Order) -> None:
        called.set()
        raise ValueError("not today")

    async with broker:
        await broker.start()
        await broker.publish(Order(number=1), "orders")
        await until(called)
    with txstore.open(tmp_path / "orders.store", read_only=True) as store:
        dead, waiting = store.dead_letters("shop"), store.topics()
    assert (len(dead), "orders" in waiting) == (0 if policy is None else 1, True)
    if policy is None:
        with txstore.open(tmp_path / "orders.store", read_only=True) as store:
            assert any("SCHEDULE" in one.topic for one in store.queues()), "it waits for its delay"


@on_loop
async def test_messages_can_be_taken_one_by_one(tmp_path: Path) -> None:
    broker = on(tmp_path)
    subscriber = broker.subscriber("orders")
    async with broker:
        await broker.start()
        await broker.publish("hello", "orders", headers={"trace": "t-1"})
        message = await subscriber.get_one(timeout=_PATIENT_SECONDS)
        assert (await message.decode(), message.headers["trace"]) == ("hello", "t-1")
        assert await subscriber.get_one(timeout=0.0) is None


@on_loop
async def test_program_is_tested_without_a_store() -> None:
    def opens() -> Any:
        raise AssertionError("a test opens nothing")

    broker = TxStoreBroker(opens, group="shop")

    @broker.subscriber("orders", tags="paid")
    @broker.publisher("shipments")
    async def ship(order: Order) -> TxStoreResponse:
        return TxStoreResponse({"shipment": order.number}, tags="new")

    shipments = broker.publisher("invoices")

    async with TestTxStoreBroker(broker) as tested:
        await tested.publish(Order(number=1), "orders", tags="draft")
        ship.mock.assert_not_called()
        await tested.publish(Order(number=2), "orders", tags="paid")
        ship.mock.assert_called_once_with({"number": 2})
        await shipments.publish("an invoice")
        shipments.mock.assert_called_once_with("an invoice")
        with pytest.raises(FeatureNotSupportedException, match="request and reply"):
            await tested.request("x", "orders")
    with pytest.raises(IncorrectState, match="not connected"):
        await broker.publish("x", "orders")


def test_asyncapi_lists_channels_with_their_payloads(tmp_path: Path) -> None:
    broker = on(tmp_path)

    @broker.subscriber("orders", description="Paid orders.")
    @broker.publisher("shipments")
    async def ship(order: Order) -> str:
        return ""

    document = json.loads(AsyncAPI(broker, schema_version="3.0.0").to_specification().to_json())
    assert {one["address"] for one in document["channels"].values()} == {"orders", "shipments"}
    assert "Order" in document["components"]["schemas"]
    assert [one["protocol"] for one in document["servers"].values()] == ["txstore"]


@on_loop
async def test_fastapi_router_serves_and_subscribes(tmp_path: Path) -> None:
    import uvicorn
    from fastapi import FastAPI

    from txstore.faststream.fastapi import TxStoreRouter

    router = TxStoreRouter(lambda: txstore.aio.open(tmp_path / "orders.store"), group="shop")
    done, found = asyncio.Event(), []

    @router.subscriber("orders")
    async def handle(order: Order) -> None:
        found.append(order.number)
        done.set()

    @router.post("/orders/{number}")
    async def pay(number: int) -> str:
        await router.broker.publish(Order(number=number), "orders")
        return "paid"

    app = FastAPI()
    app.include_router(router)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        request = urllib.request.Request(f"{url}/orders/17", method="POST")
        assert await asyncio.to_thread(fetched, request) == b'"paid"'
        assert b"orders" in await asyncio.to_thread(fetched, urllib.request.Request(f"{url}/asyncapi"))
        await until(done)
        server.should_exit = True
        await serving
    assert found == [17]


def fetched(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=_PATIENT_SECONDS) as answer:
        body: bytes = answer.read()
    return body


def test_wrong_option_of_a_response_is_named() -> None:
    with pytest.raises(TypeError, match="no option 'tag'; there are tags, keys"):
        TxStoreResponse("x", tag="paid")


def test_page_on_faststream_runs_as_shown(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs/publish/faststream.md"
    assert follow(page, tmp_path) == ""
    program = (
        "import asyncio\nfrom shop import Order, app, broker, pay, tables\n"
        "async def main():\n"
        "    await tables()\n"
        "    async with broker:\n"
        "        await pay(Order(number=18))\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=_PATIENT_SECONDS)
    with txstore.open(tmp_path / "orders.store", read_only=True) as store:
        (queue,) = [one for one in store.queues() if one.topic == "orders" and one.end]
    assert queue.end == 1
