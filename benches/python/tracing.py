"""Measures what spans cost: sends and transactions without `txstore.otel`, with it and no sampling, and with spans.

Run `python -m benches.python.tracing`. Prints microseconds for each operation, the fastest of five rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

import txstore
from txstore import LocalTransactionState, Message
from txstore.otel import instrument

_ROUNDS = 5
_OPERATIONS = 2_000


class _Dropping(SpanExporter):
    """Exports nowhere."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _provider(sampler: Sampler) -> TracerProvider:
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(_Dropping()))
    return provider


def _microseconds(operation: Callable[[], object]) -> float:
    fastest = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(_OPERATIONS):
            operation()
        fastest = min(fastest, (time.perf_counter() - began) / _OPERATIONS)
    return fastest * 1e6


def _measure(name: str, sampler: Sampler | None) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        txstore.open(Path(folder) / "store", transaction_flush_disk_type="ASYNC_FLUSH") as broker,
    ):
        if sampler is not None:
            instrument(broker, tracer_provider=_provider(sampler))
        message = Message("orders", b"x" * 100)
        producer = broker.producer("shop")
        checked = broker.transaction_producer("payments", check_listener=lambda _: LocalTransactionState.COMMIT)
        send = _microseconds(lambda: producer.send(message))
        transaction = _microseconds(
            lambda: checked.send_in_transaction(message, executer=lambda *_: LocalTransactionState.COMMIT)
        )
        print(f"{name:<28} send {send:7.1f} us   transaction {transaction:7.1f} us")


if __name__ == "__main__":
    _measure("not instrumented", None)
    _measure("instrumented, not sampled", ALWAYS_OFF)
    _measure("instrumented, every span", ALWAYS_ON)
