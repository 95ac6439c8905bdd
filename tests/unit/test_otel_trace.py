"""Guards that one order is one trace: a request of FastAPI, its database transaction, `txstore serve`, and a consumer
in another process.

The service runs here, with the SDK's exporter in memory. The server and the consumer are processes of their own, which
export by OTLP.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import txstore.aio
from tests.otlp import Collector
from tests.waiting import eventually
from txstore import LocalTransactionState, Message
from txstore.database import Database
from txstore.otel import instrument

_SERVE = "import sys; from txstore.cli.main import main; sys.exit(main())"
_CONSUMER = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
import txstore
from txstore.otel import instrument
provider = TracerProvider(resource=Resource.create({"service.name": "shipping"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
with instrument(txstore.connect(sys.argv[1])) as broker:
    consumer = broker.consumer("shipping", ["orders", "payments"])
    seen = []
    def handle(message):
        with trace.get_tracer("shipping").start_as_current_span("ship"):
            seen.append(message.topic)
        if len(seen) == 2:
            consumer.close()
    consumer.run(handle, threads=1)
"""


@contextmanager
def serving(store: Path, collector: Collector) -> Iterator[str]:
    command = [sys.executable, "-c", _SERVE, "serve", os.fspath(store), "--listen", "127.0.0.1:0"]
    environment = os.environ | collector.environment | {"OTEL_SERVICE_NAME": "queue"}
    with subprocess.Popen(
        [*command, "--name-server", "none", "--otel"], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()
            assert process.wait(60) == 0


def service(address: str, file: Path, provider: TracerProvider) -> FastAPI:
    """A service of FastAPI. Its request and its statement are spans, as instrumentations of both make them."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    database = Database(engine)
    tracer = provider.get_tracer("shop")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database.create_table()
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        async with txstore.aio.connect(address) as broker:
            instrument(broker, tracer_provider=provider)
            app.state.orders = broker.producer("shop", database=database)
            app.state.payments = broker.transaction_producer(
                "payments", check_listener=lambda _: LocalTransactionState.COMMIT
            )
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.middleware("http")
    async def traced(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        with tracer.start_as_current_span(f"{request.method} {request.url.path}", kind=SpanKind.SERVER):
            return await call(request)

    @app.post("/orders/{order_id}")
    async def order(order_id: int, request: Request) -> None:
        async with AsyncSession(engine) as session, session.begin():
            with tracer.start_as_current_span("INSERT orders", kind=SpanKind.CLIENT):
                await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
            await request.app.state.orders.send(Message("orders", b"%d" % order_id), session=session)
        async with request.app.state.payments.transaction(Message("payments", b"%d" % order_id)):
            with tracer.start_as_current_span("pay", kind=SpanKind.CLIENT):
                pass

    return app


@contextmanager
def running(app: FastAPI) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


def test_one_order_is_one_trace_of_all_processes(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Collector() as collector:
        with serving(tmp_path / "orders.store", collector) as address:
            with running(service(address, tmp_path / "shop.db", provider)) as port:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/17", method="POST")
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert answer.status == 200
                eventually(lambda: any(span.name == "forward orders" for span in exporter.get_finished_spans()))
            environment = os.environ | collector.environment
            subprocess.run([sys.executable, "-c", _CONSUMER, address], env=environment, check=True, timeout=60)
        ours = [span for span in exporter.get_finished_spans() if span.context is not None]
        theirs = [span for span in collector.spans if not span.name.startswith("poll")]
    ids = {f"{span.context.trace_id:032x}" for span in ours} | {span.trace_id for span in theirs}
    assert len(ids) == 1
    assert sorted(span.name for span in ours) == [
        "INSERT orders", "POST /orders/17", "commit payments", "create orders", "forward orders",
        "local transaction payments", "pay", "prepare payments",
    ]  # fmt: skip
    assert sorted((span.service, span.name) for span in theirs) == [
        ("queue", "store orders"), ("queue", "store payments"), ("queue", "store payments"),
        ("shipping", "process orders"), ("shipping", "process payments"), ("shipping", "ship"), ("shipping", "ship"),
    ]  # fmt: skip
    parents = {span.name: f"{span.context.span_id:016x}" for span in ours}
    for name, parent in [("orders", "create orders"), ("payments", "prepare payments")]:
        for span in theirs:
            if span.name in (f"store {name}", f"process {name}"):
                assert span.parent_id == parents[parent]
