"""Spans: what OpenTelemetry's semantic conventions for messaging say of an operation on messages.

In:     an operation and its messages.
Out:    a span, current while the operation runs.
Always: an exception is recorded and raised on. Names and attributes are those of the conventions' version SCHEMA;
        `messaging.system` is `rocketmq`, because messages, protocol and files are RocketMQ's.
Not here: where the operations are (`instrument`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from txstore._native import __version__
from txstore.message import (
    LocalTransactionState,
    Message,
    ReceivedMessage,
    SentMessage,
    TransactionMessage,
    transaction_id_of,
)
from txstore.otel.context import carried

__all__ = ["PRODUCER_GROUP", "SCHEMA", "TRANSACTION_ID", "Spans", "parent_of", "process"]

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_SYSTEM = {"messaging.system": "rocketmq"}
_LINKS_MAX = 128
TRANSACTION_ID = "txstore.transaction.id"
PRODUCER_GROUP = "txstore.producer.group"

_Attributes = dict[str, AttributeValue]


class Spans:
    """The spans of one broker. Thread-safe."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        """`provider`: None for the program's."""
        self._tracer = trace.get_tracer("txstore", __version__, provider, SCHEMA)

    @contextmanager
    def _span(
        self,
        name: str,
        type_: str | None,
        topic: str | None,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue | None],
        *,
        parent: contexts.Context | None = None,
        links: Sequence[SpanContext] = (),
    ) -> Iterator[Span]:
        span = self._tracer.start_span(
            name if topic is None else f"{name} {topic}",
            parent,
            kind,
            _operation(name, type_, topic, attributes),
            [Link(link) for link in links],
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                fail(span, error)
                raise

    @contextmanager
    def send(
        self, messages: Sequence[Message], group: str, queue_id: int | None, name: str = "send", type_: str = "send"
    ) -> Iterator[Span]:
        """`prepare` is the name of storing half messages, `create` of inserting rows."""
        topics = {message.topic for message in messages}
        more = _one(messages[0]) if len(messages) == 1 else {}
        if name == "prepare":
            more["messaging.rocketmq.message.type"] = "transaction"
        attributes: dict[str, AttributeValue | None] = {
            PRODUCER_GROUP: group,
            "messaging.destination.partition.id": None if queue_id is None else str(queue_id),
            "messaging.batch.message_count": len(messages) if len(messages) > 1 else None,
        }
        topic = topics.pop() if len(topics) == 1 else None
        with self._span(name, type_, topic, SpanKind.PRODUCER, more | attributes) as span:
            yield span

    def sent(self, span: Span, sent: SentMessage) -> None:
        """Notes where a message was stored."""
        span.set_attribute("messaging.message.id", sent.message_id)
        if sent.transaction_id is not None:
            span.set_attribute(TRANSACTION_ID, transaction_id_of(sent))

    def local_transaction(self, half: SentMessage, group: str, parent: Span) -> Span:
        """Begins the span of a local transaction."""
        attributes = {TRANSACTION_ID: transaction_id_of(half), PRODUCER_GROUP: group}
        named = _operation("local transaction", None, half.topic, attributes)
        here = trace.set_span_in_context(parent)
        return self._tracer.start_span(f"local transaction {half.topic}", here, attributes=named)

    @contextmanager
    def end(
        self, half: SentMessage, state: LocalTransactionState, group: str | None, parent: SpanContext | None
    ) -> Iterator[Span]:
        attributes: dict[str, AttributeValue | None] = {
            PRODUCER_GROUP: group,
            TRANSACTION_ID: transaction_id_of(half),
            "messaging.message.id": half.message_id,
        }
        name = state.name.lower()
        with self._span(name, "settle", half.topic, SpanKind.CLIENT, attributes, parent=parent_of(parent)) as span:
            yield span

    @contextmanager
    def check(self, message: TransactionMessage, group: str) -> Iterator[Span]:
        """A check may be hours later, so it is a trace of its own with a link to the half message's."""
        context = carried(message.properties)
        attributes: dict[str, AttributeValue | None] = {
            PRODUCER_GROUP: group,
            TRANSACTION_ID: message.transaction_id,
            "messaging.message.id": message.transaction_id,
        }
        links = [] if context is None else [context]
        with self._span("check", "process", message.topic, SpanKind.CONSUMER, attributes, links=links) as span:
            yield span

    def received(self, messages: Sequence[ReceivedMessage], group: str, began_ns: int) -> None:
        """Notes messages that a consumer took, with a link to the context of each."""
        topics = {message.topic for message in messages}
        attributes: dict[str, AttributeValue | None] = {
            "messaging.consumer.group.name": group,
            "messaging.batch.message_count": len(messages) if len(messages) > 1 else None,
            "messaging.message.id": messages[0].message_id if len(messages) == 1 else None,
        }
        topic = topics.pop() if len(topics) == 1 else None
        found = (carried(message.properties) for message in messages[:_LINKS_MAX])
        self._tracer.start_span(
            "poll" if topic is None else f"poll {topic}",
            kind=SpanKind.CLIENT,
            attributes=_operation("poll", "receive", topic, attributes),
            links=[Link(context) for context in found if context is not None],
            start_time=began_ns,
        ).end()

    @contextmanager
    def process(self, message: ReceivedMessage, group: str | None) -> Iterator[Span]:
        """A child of the span that sent the message."""
        context = carried(message.properties)
        attributes: dict[str, AttributeValue | None] = {
            "messaging.consumer.group.name": group,
            "messaging.destination.partition.id": str(message.queue_id),
            "messaging.message.id": message.message_id,
            "messaging.message.body.size": len(message.body),
            "messaging.rocketmq.message.keys": message.keys or None,
            "messaging.rocketmq.message.tag": message.tags,
            TRANSACTION_ID: message.transaction_id,
            "txstore.reconsume_times": message.reconsume_times or None,
        }
        links = [] if context is None else [context]
        parent = parent_of(context)
        topic = message.topic
        with self._span("process", "process", topic, SpanKind.CONSUMER, attributes, parent=parent, links=links) as span:
            yield span

    def at(
        self,
        name: str,
        type_: str | None,
        topic: str,
        kind: SpanKind,
        parent: SpanContext,
        attributes: Mapping[str, AttributeValue | None],
        times_ns: tuple[int, int],
        error: BaseException | None = None,
    ) -> None:
        """Notes an operation of a known time on a message, as a child of the span that sent it."""
        named = _operation(name, type_, topic, attributes)
        began, ended = times_ns
        span = self._tracer.start_span(f"{name} {topic}", parent_of(parent), kind, named, start_time=began)
        if error is not None:
            fail(span, error)
        span.end(ended)


def process(
    message: ReceivedMessage, *, group: str | None = None, tracer_provider: trace.TracerProvider | None = None
) -> AbstractContextManager[Span]:
    """`with process(message):` makes the block a span in the message's trace, and the spans inside its children.

    For loops over a consumer; `consumer.run` does it by itself. `group` is the consumer group.
    """
    return Spans(tracer_provider).process(message, group)


def parent_of(context: SpanContext | None) -> contexts.Context | None:
    """Returns a context whose current span is a remote one; None for the present context."""
    return None if context is None else trace.set_span_in_context(trace.NonRecordingSpan(context))


def fail(span: Span, error: BaseException) -> None:
    """Notes that a span's operation raised."""
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    if isinstance(error, Exception):
        span.record_exception(error)


def _operation(
    name: str, type_: str | None, topic: str | None, attributes: Mapping[str, AttributeValue | None]
) -> _Attributes:
    every: dict[str, AttributeValue | None] = {
        **_SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": type_,
        "messaging.destination.name": topic,
        **attributes,
    }
    return {key: value for key, value in every.items() if value is not None}


def _one(message: Message) -> dict[str, AttributeValue | None]:
    kind = "fifo" if message.message_group is not None else "delay" if message.delay_level else "normal"
    return {
        "messaging.message.body.size": len(message.body),
        "messaging.rocketmq.message.type": kind,
        "messaging.rocketmq.message.tag": message.tags,
        "messaging.rocketmq.message.keys": message.keys or None,
        "messaging.rocketmq.message.group": message.message_group,
        "messaging.rocketmq.message.delay_time_level": message.delay_level or None,
    }
