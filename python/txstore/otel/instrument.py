"""Instrument: replaces the calls that producers and consumers make on one broker by calls with spans.

In:     an open broker, of any kind.
Out:    the same broker; producers and consumers that it creates from now on have spans.
Always: other brokers of the process are not changed. A call returns and raises what it did before.
Not here: what a span says (`spans`).
"""

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from opentelemetry import trace

from txstore.consumer import Consumer
from txstore.errors import StoreClosedError
from txstore.interface import EndedTransaction
from txstore.message import ConsumeResult, Half, LocalTransactionState, Message, ReceivedMessage, SentMessage
from txstore.otel.context import with_context
from txstore.otel.local_transactions import LocalTransactions
from txstore.otel.rows import trace_rows
from txstore.otel.spans import Spans
from txstore.producer import TransactionProducer

__all__ = ["instrument"]

BrokerT = TypeVar("BrokerT", bound="_Broker")
_DONE = "_instrumented"


class _Broker(Protocol):
    """A broker of txstore or of txstore.aio."""

    @property
    def closed(self) -> bool: ...


def instrument(broker: BrokerT, *, tracer_provider: trace.TracerProvider | None = None) -> BrokerT:
    """Gives the broker's producers and consumers spans, from now on, and returns the broker. Idempotent.

    Call it before you create producers and consumers; one of `txstore.aio` is instrumented inside `async with`.
    Messages carry the context of their span in their properties, so consumers continue the trace in any process.
    `tracer_provider`: None for the program's, `opentelemetry.trace.get_tracer_provider()`. Raises StoreClosedError.
    """
    if broker.closed:
        raise StoreClosedError(f"{broker!r} is closed\nhint: instrument it before it is used")
    if _DONE not in vars(broker):
        spans = Spans(tracer_provider)
        locals_ = LocalTransactions(spans)
        calls = getattr(broker, "_opened", None)
        if calls is not None:  # Of txstore.aio: a blocking broker, and calls that are coroutines.
            _trace_coroutines(calls, spans, locals_)
        _trace_calls(broker if calls is None else broker._blocking_broker, spans, locals_)  # type: ignore[attr-defined]
        _replace(broker, "producer", functools.partial(_producer, spans))
        vars(broker)[_DONE] = True
    return broker


def _replace(owner: object, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replaces a call of one object by `wrap` of it."""
    setattr(owner, name, wrap(getattr(owner, name)))


# What blocking producers call


def _trace_calls(broker: object, spans: Spans, locals_: LocalTransactions) -> None:
    _replace(broker, "appender", functools.partial(_appender, spans))
    _replace(broker, "append_many", functools.partial(_append_many, spans))
    _replace(broker, "prepare", functools.partial(_prepare, spans, locals_))
    _replace(broker, "prepare_many", functools.partial(_prepare_many, spans, locals_))
    _replace(broker, "end", functools.partial(_end, spans, locals_))
    _replace(broker, "local_transaction_ended", functools.partial(_ended, locals_))
    _replace(broker, "register_producer", functools.partial(_register_producer, spans, locals_))
    _replace(broker, "consumer", functools.partial(_consumer, spans))
    trace_rows(broker.outboxes, spans)  # type: ignore[attr-defined]


def _appender(spans: Spans, appender: Callable[[str], Callable[[Message, int], SentMessage]]) -> object:
    def traced(group: str) -> Callable[[Message, int], SentMessage]:
        append = appender(group)

        def send(message: Message, queue_id: int) -> SentMessage:
            with spans.send([message], group, queue_id) as span:
                sent = append(with_context(message, span), queue_id)
                spans.sent(span, sent)
                return sent

        return send

    return traced


def _append_many(spans: Spans, append_many: Callable[..., Sequence[SentMessage]]) -> object:
    def send(messages: Sequence[Message], queue_ids: Sequence[int], group: str) -> Sequence[SentMessage]:
        with spans.send(messages, group, None) as span:
            return append_many([with_context(message, span) for message in messages], queue_ids, group)

    return send


def _prepare(spans: Spans, locals_: LocalTransactions, prepare: Callable[..., Half]) -> object:
    def send(message: Message, queue_id: int, group: str, owner: int = 0, /) -> Half:
        with spans.send([message], group, queue_id, "prepare") as span:
            copy = with_context(message, span)
            half = prepare(copy, queue_id, group, owner)
            spans.sent(span, half)
        locals_.begin(half, group, span, copy)
        return half

    return send


def _prepare_many(spans: Spans, locals_: LocalTransactions, prepare_many: Callable[..., Half]) -> object:
    def send(messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int, /) -> Half:
        with spans.send(messages, group, None, "prepare") as span:
            copies = [with_context(message, span) for message in messages]
            half = prepare_many(copies, queue_ids, group, owner)
            spans.sent(span, half)
        locals_.begin(half, group, span, copies[0])
        return half

    return send


def _end(spans: Spans, locals_: LocalTransactions, end: Callable[..., EndedTransaction]) -> object:
    def traced(half: Half, state: LocalTransactionState, group: str, /) -> EndedTransaction:
        with spans.end(half, state, group, locals_.end(half)):
            return end(half, state, group)

    return traced


def _ended(locals_: LocalTransactions, local_transaction_ended: Callable[[Half], None]) -> object:
    def traced(half: Half, /) -> None:
        locals_.end(half)
        local_transaction_ended(half)

    return traced


def _register_producer(spans: Spans, locals_: LocalTransactions, register: Callable[[Any], int]) -> object:
    def traced(producer: Any) -> int:
        if isinstance(producer, TransactionProducer) and "checker_for" not in vars(producer):
            _replace(producer, "checker_for", functools.partial(_checker_for, spans, producer.group))
            _replace(producer, "_began", functools.partial(_began, locals_))
        return register(producer)

    return traced


def _began(locals_: LocalTransactions, began: Callable[[Any, Message], Any]) -> object:
    def traced(half: Half, message: Message) -> Any:
        return began(half, locals_.message(half) or message)  # So that it can be sent again as it was stored.

    return traced


def _checker_for(spans: Spans, group: str, checker_for: Callable[[str, str | None], Any]) -> object:
    def traced(topic: str, tag: str | None) -> Any:
        checker = checker_for(topic, tag)
        return None if checker is None else functools.partial(_check, spans, group, checker)

    return traced


def _check(spans: Spans, group: str, checker: Callable[[Any], object], message: Any) -> object:
    with spans.check(message, group) as span:
        answer = checker(message)
        span.set_attribute("txstore.check.answer", getattr(answer, "name", "UNKNOWN"))
        return answer


# What producers of txstore.aio call


def _trace_coroutines(calls: object, spans: Spans, locals_: LocalTransactions) -> None:
    _replace(calls, "send", functools.partial(_send_async, spans))
    _replace(calls, "send_batch", functools.partial(_send_batch_async, spans))
    _replace(calls, "prepare", functools.partial(_prepare_async, spans, locals_))
    _replace(calls, "prepare_many", functools.partial(_prepare_many_async, spans, locals_))
    _replace(calls, "end", functools.partial(_end_async, spans, locals_))
    _replace(calls, "local_transaction_ended", functools.partial(_ended_async, locals_))


def _send_async(spans: Spans, send: Callable[..., Any]) -> object:
    async def traced(message: Message, queue_id: int, group: str) -> SentMessage:
        with spans.send([message], group, queue_id) as span:
            sent: SentMessage = await send(with_context(message, span), queue_id, group)
            spans.sent(span, sent)
            return sent

    return traced


def _send_batch_async(spans: Spans, send_batch: Callable[..., Any]) -> object:
    async def traced(messages: Sequence[Message], queue_ids: Sequence[int], group: str) -> Any:
        with spans.send(messages, group, None) as span:
            return await send_batch([with_context(message, span) for message in messages], queue_ids, group)

    return traced


def _prepare_async(spans: Spans, locals_: LocalTransactions, prepare: Callable[..., Any]) -> object:
    async def traced(message: Message, queue_id: int, group: str, owner: int) -> Half:
        with spans.send([message], group, queue_id, "prepare") as span:
            copy = with_context(message, span)
            half: Half = await prepare(copy, queue_id, group, owner)
            spans.sent(span, half)
        locals_.begin(half, group, span, copy)
        return half

    return traced


def _prepare_many_async(spans: Spans, locals_: LocalTransactions, prepare_many: Callable[..., Any]) -> object:
    async def traced(messages: Sequence[Message], queue_ids: Sequence[int], group: str, owner: int) -> Half:
        with spans.send(messages, group, None, "prepare") as span:
            copies = [with_context(message, span) for message in messages]
            half: Half = await prepare_many(copies, queue_ids, group, owner)
            spans.sent(span, half)
        locals_.begin(half, group, span, copies[0])
        return half

    return traced


def _end_async(spans: Spans, locals_: LocalTransactions, end: Callable[..., Any]) -> object:
    async def traced(half: Half, state: LocalTransactionState, group: str | None) -> Any:
        with spans.end(half, state, group, locals_.end(half)):
            return await end(half, state, group)

    return traced


def _ended_async(locals_: LocalTransactions, local_transaction_ended: Callable[..., None]) -> object:
    def traced(producer: Any, local: Any) -> None:
        locals_.end(local.half)  # In the task whose context has the span.
        local_transaction_ended(producer, local)

    return traced


# Producers with a database


def _producer(spans: Spans, producer: Callable[..., Any]) -> object:
    @functools.wraps(producer)
    def traced(group: str, *, database: object = None) -> Any:
        if database is None:
            return producer(group)
        made = producer(group, database=database)
        if inspect.iscoroutinefunction(made.send):
            _replace(made, "send", functools.partial(_insert_async, spans, group, False))
            _replace(made, "send_batch", functools.partial(_insert_async, spans, group, True))
        else:
            _replace(made, "send", functools.partial(_insert, spans, group, False))
            _replace(made, "send_batch", functools.partial(_insert, spans, group, True))
        return made

    return traced


def _insert(spans: Spans, group: str, many: bool, send: Callable[..., Any]) -> object:
    @functools.wraps(send)
    def traced(given: Any, *, session: Any, queue_id: int | None = None) -> Any:
        messages = list(given) if many else [given]
        if session is None or not _are_messages(messages):
            return send(given, session=session, queue_id=queue_id)
        with spans.send(messages, group, queue_id, "create", "create") as span:
            copies = [with_context(message, span) for message in messages]
            receipts = send(copies if many else copies[0], session=session, queue_id=queue_id)
            if not many:
                span.set_attribute("messaging.message.id", receipts.message_id)
            return receipts

    return traced


def _insert_async(spans: Spans, group: str, many: bool, send: Callable[..., Any]) -> object:
    @functools.wraps(send)
    async def traced(given: Any, *, session: Any, queue_id: int | None = None) -> Any:
        messages = list(given) if many else [given]
        if session is None or not _are_messages(messages):
            return await send(given, session=session, queue_id=queue_id)
        with spans.send(messages, group, queue_id, "create", "create") as span:
            copies = [with_context(message, span) for message in messages]
            receipts = await send(copies if many else copies[0], session=session, queue_id=queue_id)
            if not many:
                span.set_attribute("messaging.message.id", receipts.message_id)
            return receipts

    return traced


def _are_messages(given: Sequence[object]) -> bool:
    """Tells whether a batch has messages only. Otherwise, the producer's own error is raised."""
    return bool(given) and all(isinstance(message, Message) for message in given)


# Consumers


def _consumer(spans: Spans, consumer: Callable[..., Consumer]) -> object:
    @functools.wraps(consumer)
    def traced(*arguments: Any, **options: Any) -> Consumer:
        made = consumer(*arguments, **options)
        _replace(made, "poll", functools.partial(_poll, spans, made.group))
        _replace(made, "run", functools.partial(_run, spans, made.group))
        return made

    return traced


def _poll(spans: Spans, group: str, poll: Callable[..., list[ReceivedMessage]]) -> object:
    @functools.wraps(poll)
    def traced(*arguments: Any, **options: Any) -> list[ReceivedMessage]:
        began_ns = time.time_ns()
        messages = poll(*arguments, **options)
        if messages:
            spans.received(messages, group, began_ns)
        return messages

    return traced


def _run(spans: Spans, group: str, run: Callable[..., None]) -> object:
    @functools.wraps(run)
    def traced(handler: Any, **options: Any) -> None:
        def handle(message: ReceivedMessage) -> Any:
            with spans.process(message, group) as span:
                result = handler(message)
                if isinstance(result, ConsumeResult):
                    span.set_attribute("txstore.consume.result", result.name)
                return result

        run(handle if callable(handler) else handler, **options)

    return traced
