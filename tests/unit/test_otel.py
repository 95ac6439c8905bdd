"""Guards txstore.otel: messages and transactions are spans of the trace that caused them, and consumers continue it.

Without `instrument`, nothing of OpenTelemetry is loaded.
"""

from __future__ import annotations

import ast
import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import txstore
import txstore.aio
from tests.waiting import eventually
from txstore import ConsumeResult, LocalTransactionState, Message, TransactionMessage
from txstore.database import Database
from txstore.otel import instrument, process
from txstore.otel.context import with_context
from txstore.testing import FakeBroker
from txstore.testing import aio as fake_aio

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


class Recorder:
    """A provider, and the spans that ended, by name."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("the service")

    def names(self) -> list[str]:
        return sorted(span.name for span in self.exporter.get_finished_spans())

    def __getitem__(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found

    def trace_ids(self) -> set[int]:
        return {span.context.trace_id for span in self.exporter.get_finished_spans() if span.context is not None}


@pytest.fixture
def spans() -> Recorder:
    return Recorder()


@pytest.fixture
def broker(spans: Recorder) -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield instrument(broker, tracer_provider=spans.provider)


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def test_a_handler_continues_the_trace_of_the_send(broker: FakeBroker, spans: Recorder) -> None:
    with spans.tracer.start_as_current_span("request"):
        broker.producer("shop").send(Message("orders", b"paid", tags="paid", keys=["o-17"]))
    inside: list[str] = []

    def handle(message: txstore.ReceivedMessage) -> ConsumeResult:
        with spans.tracer.start_as_current_span("ship"):
            inside.append(message.properties["traceparent"])
        return ConsumeResult.SUCCESS

    consumer = broker.consumer("shipping", "orders")
    consumer.run(handle, threads=1, timeout=0.1)
    assert spans.names() == ["process orders", "request", "send orders", "ship"]
    assert len(spans.trace_ids()) == 1
    assert is_child(spans["send orders"], spans["request"])
    assert is_child(spans["process orders"], spans["send orders"])
    assert is_child(spans["ship"], spans["process orders"])
    sent, done = spans["send orders"], spans["process orders"]
    assert sent.context is not None
    assert f"{sent.context.span_id:016x}" in inside[0]
    assert (sent.kind, done.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.attributes is not None
    assert dict(sent.attributes) | {"messaging.message.id": "?"} == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "?",
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("o-17",),
        "txstore.producer.group": "shop",
    }
    assert done.attributes is not None
    assert done.attributes["messaging.consumer.group.name"] == "shipping"
    assert done.attributes["messaging.message.id"] == sent.attributes["messaging.message.id"]
    assert done.attributes["txstore.consume.result"] == "SUCCESS"


def test_a_loop_has_a_span_of_each_poll_and_may_continue_the_trace(broker: FakeBroker, spans: Recorder) -> None:
    producer = broker.producer("shop")
    producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    with broker.consumer("shipping", "orders") as consumer:
        for message in consumer.poll(timeout=5):
            with process(message, group="shipping", tracer_provider=spans.provider):
                pass
    polled, (sent,) = spans["poll orders"], [one for one in spans.exporter.get_finished_spans() if "send" in one.name]
    assert sent.context is not None
    assert [link.context.span_id for link in polled.links] == [sent.context.span_id] * 2
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    handled = [span for span in spans.exporter.get_finished_spans() if span.name == "process orders"]
    assert [is_child(span, sent) for span in handled] == [True, True]


def test_a_transaction_is_a_half_a_local_transaction_and_an_end(broker: FakeBroker, spans: Recorder) -> None:
    producer = broker.transaction_producer("payments", check_listener=lambda _: COMMIT)
    with producer.transaction(Message("orders", b"x")) as tx, spans.tracer.start_as_current_span("INSERT"):
        name = tx.transaction_id
    assert not trace.get_current_span().get_span_context().is_valid
    assert len(spans.trace_ids()) == 1
    half = spans["prepare orders"]
    assert is_child(spans["local transaction orders"], half)
    assert is_child(spans["INSERT"], spans["local transaction orders"])
    assert is_child(spans["commit orders"], half)
    for span in (half, spans["local transaction orders"], spans["commit orders"]):
        assert span.attributes is not None
        assert span.attributes["txstore.transaction.id"] == name
    assert half.attributes is not None
    assert half.attributes["messaging.rocketmq.message.type"] == "transaction"
    assert [message.properties["traceparent"][36:52] for message in broker.messages("orders")] == [
        f"{half.context.span_id:016x}" if half.context is not None else ""
    ]


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK, UNKNOWN, ValueError("no")])
def test_a_local_transaction_ends_with_its_answer(
    broker: FakeBroker, spans: Recorder, answer: LocalTransactionState | ValueError
) -> None:
    def execute(message: TransactionMessage, arg: object) -> LocalTransactionState:
        if isinstance(answer, ValueError):
            raise answer
        return answer

    producer = broker.transaction_producer("payments", check_listener=lambda _: COMMIT)
    with spans.tracer.start_as_current_span("request") as request:
        producer.send_in_transaction(Message("orders", b"x"), executer=execute)
        assert trace.get_current_span() is request
    ends = {COMMIT: ["commit orders"], ROLLBACK: ["rollback orders"]}
    expected = [] if isinstance(answer, ValueError) else ends.get(answer, [])
    assert spans.names() == sorted(["request", "prepare orders", "local transaction orders", *expected])


def test_a_check_is_linked_to_its_half(broker: FakeBroker, spans: Recorder) -> None:
    producer = broker.transaction_producer("payments", check_listener=lambda _: COMMIT)
    producer.send_in_transaction(Message("orders", b"x"), executer=lambda *_: UNKNOWN)
    broker.clock.advance(6)
    assert broker.run_checks() == 1
    half, check = spans["prepare orders"], spans["check orders"]
    assert half.context is not None
    assert [link.context.span_id for link in check.links] == [half.context.span_id]
    assert check.parent is None
    assert check.attributes is not None
    assert check.attributes["txstore.check.answer"] == "COMMIT"


def test_a_failed_send_says_why(broker: FakeBroker, spans: Recorder) -> None:
    producer = broker.producer("shop")
    producer.send(Message("orders", b"x"))
    spans.exporter.clear()
    with pytest.raises(txstore.InvalidMessageError):
        producer.send(Message("orders", b"x" * (5 << 20)))
    failed = spans["send orders"]
    assert not failed.status.is_ok
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "InvalidMessageError"


def test_a_context_that_a_message_has_already_is_kept(broker: FakeBroker, spans: Recorder) -> None:
    given = "00-11112222333344445555666677778888-1111222233334444-01"
    broker.producer("shop").send(Message("orders", b"x", properties={"traceparent": given}))
    (message,) = broker.messages("orders")
    assert message.properties["traceparent"] == given


@pytest.mark.parametrize("state", [TraceState(), TraceState([("vendor", "a=1"), ("other", "2")])])
@pytest.mark.parametrize("flags", [TraceFlags.DEFAULT, TraceFlags.SAMPLED])
def test_a_context_is_written_as_the_propagator_does(state: TraceState, flags: int) -> None:
    span = trace.NonRecordingSpan(SpanContext(0xA1, 0xB2, False, TraceFlags(flags), state))
    expected: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(expected, trace.set_span_in_context(span))
    assert expected
    assert with_context(Message("orders", b"x"), span).properties == expected


class Refusing(Sampler):
    """Samples nothing, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Mapping[str, object]] = {}

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *_: Any,
        **__: Any,
    ) -> SamplingResult:
        self.asked[name] = dict(attributes or {})
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "Refusing"


def test_a_sampler_sees_what_the_operation_is_and_a_refused_context_travels() -> None:
    sampler = Refusing()
    with FakeBroker() as broker:
        instrument(broker, tracer_provider=TracerProvider(sampler=sampler))
        broker.producer("shop").send(Message("orders", b"x", keys=["o-1"]))
        (message,) = broker.consumer("shipping", "orders").poll(timeout=5)
        with process(message, group="shipping", tracer_provider=TracerProvider(sampler=sampler)):
            pass
    flags = int(message.properties["traceparent"].rpartition("-")[2], 16)
    assert not flags & TraceFlags.SAMPLED
    assert sampler.asked["send orders"] == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(message.queue_id),
    }
    assert sampler.asked["process orders"]["messaging.consumer.group.name"] == "shipping"


def test_a_message_without_room_for_a_context_is_sent_without(broker: FakeBroker) -> None:
    name = "n" * 30_000
    for length in (1, 2_700):  # The longest properties have 32,767 bytes, and the store adds its own.
        broker.producer("shop").send(Message("orders", b"x", properties={name: "v" * length}))
    assert ["traceparent" in message.properties for message in broker.messages("orders")] == [True, False]


def test_a_message_of_a_program_without_a_tracer_has_no_context() -> None:
    with FakeBroker() as broker:
        instrument(broker, tracer_provider=trace.NoOpTracerProvider())
        broker.producer("shop").send(Message("orders", b"x"))
        assert "traceparent" not in broker.messages("orders")[0].properties


def test_a_resent_transaction_is_recognized(broker: FakeBroker) -> None:
    producer = broker.transaction_producer("payments", check_listener=lambda _: COMMIT)
    first = producer.send_in_transaction(Message("orders", b"x"), executer=lambda *_: UNKNOWN)
    assert "traceparent" in first.message.properties
    again = producer.send_in_transaction(first.message, executer=lambda *_: COMMIT)
    assert again.transaction_id == first.transaction_id
    assert len(broker.messages("orders")) == 1


def test_a_row_continues_the_trace_of_its_transaction(tmp_path: Path, spans: Recorder) -> None:
    database = Database(tmp_path / "shop.db")
    database.create_table()
    with txstore.open(tmp_path / "orders.store") as broker:
        producer = instrument(broker, tracer_provider=spans.provider).producer("shop", database=database)
        with sqlite3.connect(tmp_path / "shop.db") as session, spans.tracer.start_as_current_span("request"):
            producer.send(Message("orders", b"x"), session=session)
            producer.send_batch([Message("orders", b"y"), Message("ledger", b"z")], session=session)
        eventually(lambda: spans.names().count("forward orders") == 2)
        consumer = broker.consumer("shipping", "orders")
        consumer.run(lambda _: None, threads=1, timeout=0.2)
        consumer.close()
    assert len(spans.trace_ids()) == 1
    assert is_child(spans["create orders"], spans["request"])
    assert is_child(spans["forward ledger"], spans["create"])
    assert spans.names().count("process orders") == 2


def test_coroutines_have_the_same_spans(spans: Recorder) -> None:
    async def main() -> None:
        async with fake_aio.FakeBroker() as broker:
            instrument(broker, tracer_provider=spans.provider)
            with spans.tracer.start_as_current_span("request") as request:
                await broker.producer("shop").send(Message("orders", b"x"))
                producer = broker.transaction_producer("payments", check_listener=lambda _: COMMIT)
                async with producer.transaction(Message("payments", b"x")):
                    with spans.tracer.start_as_current_span("INSERT"):
                        await asyncio.sleep(0)
                await producer.send_in_transaction(Message("refunds", b"x"), executer=lambda *_: UNKNOWN)
                assert trace.get_current_span() is request

                async def handle(message: txstore.ReceivedMessage) -> None:
                    with spans.tracer.start_as_current_span("ship"):
                        await asyncio.sleep(0)

                async with broker.consumer("shipping", "orders") as consumer:
                    await consumer.run(handle, threads=1, timeout=0.1)

    asyncio.run(main())
    assert len(spans.trace_ids()) == 1
    assert is_child(spans["send orders"], spans["request"])
    assert is_child(spans["INSERT"], spans["local transaction payments"])
    assert is_child(spans["commit payments"], spans["prepare payments"])
    assert is_child(spans["local transaction refunds"], spans["prepare refunds"])
    assert is_child(spans["ship"], spans["process orders"])


def test_another_broker_of_the_process_is_not_changed(broker: FakeBroker, spans: Recorder) -> None:
    with FakeBroker() as other:
        other.producer("shop").send(Message("orders", b"x"))
        assert "traceparent" not in other.messages("orders")[0].properties
    assert spans.names() == []


def test_a_second_call_changes_nothing(broker: FakeBroker, spans: Recorder) -> None:
    instrument(broker, tracer_provider=spans.provider).producer("shop").send(Message("orders", b"x"))
    assert spans.names() == ["send orders"]


def test_a_closed_broker_is_refused() -> None:
    with FakeBroker() as broker:
        pass
    with pytest.raises(txstore.StoreClosedError, match="instrument it before"):
        instrument(broker)


def test_nothing_is_loaded_without_it(tmp_path: Path) -> None:
    program = f"""
import sqlite3, sys, txstore, txstore.aio, txstore.database, txstore.server
from txstore import LocalTransactionState, Message
with txstore.open({str(tmp_path / "a.store")!r}) as broker:
    broker.producer("shop").send(Message("orders", b"x"))
    producer = broker.transaction_producer("payments", check_listener=lambda _: LocalTransactionState.COMMIT)
    with producer.transaction(Message("orders", b"y")):
        pass
    with broker.consumer("shipping", "orders") as consumer:
        assert len(consumer.poll(timeout=5)) > 0
    txstore.serve(broker, listen="127.0.0.1:0", name_server=None).close()
assert not [name for name in sys.modules if "opentelemetry" in name or "txstore.otel" in name]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_attributes_are_those_of_the_semantic_conventions() -> None:
    known = {
        value
        for module in (messaging_attributes, error_attributes)
        for name, value in vars(module).items()
        if name.isupper()
    }
    folder = Path(txstore.otel.__file__).parent
    used = {
        node.value
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(("messaging.", "error."))
    }
    assert len(used) > 10
    assert used <= known
