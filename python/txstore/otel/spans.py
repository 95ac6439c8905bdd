"""Spans: what OpenTelemetry's semantic conventions for messaging say of an operation on messages.

In:     an operation and its messages.
Out:    a span, current while the operation runs.
Always: an exception is recorded and raised on. Names and attributes are those of the conventions' version SCHEMA;
        `messaging.system` is `rocketmq`, because messages, protocol and files are RocketMQ's.
Not here: where the operations are (`instrument`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import TracebackType

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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = "messaging.operation.name"
_TOPIC = "messaging.destination.name"
_PARTITION = "messaging.destination.partition.id"
_CONSUMER_GROUP = "messaging.consumer.group.name"
_LINKS_MAX = 128
TRANSACTION_ID = "txstore.transaction.id"
PRODUCER_GROUP = "txstore.producer.group"

_Attributes = dict[str, AttributeValue]
_Optional = dict[str, AttributeValue | None]


class Spans:
    """The spans of one broker. Thread-safe."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        """`provider`: None for the program's."""
        self._tracer = trace.get_tracer("txstore", __version__, provider, SCHEMA)

    def send(
        self, messages: Sequence[Message], group: str, queue_id: int | None, name: str = "send", type_: str = "send"
    ) -> AbstractContextManager[Span]:
        """`prepare` is the name of storing half messages, `create` of inserting rows."""
        known = _known(name, type_, _topic_of(messages))
        if queue_id is not None:
            known[_PARTITION] = str(queue_id)

        def more() -> _Optional:
            one = _one(messages[0]) if len(messages) == 1 else {}
            if name == "prepare":
                one["messaging.rocketmq.message.type"] = "transaction"
            count = len(messages) if len(messages) > 1 else None
            return one | {PRODUCER_GROUP: group, "messaging.batch.message_count": count}

        return _Running(self._tracer, SpanKind.PRODUCER, known, more)

    def sent(self, span: Span, sent: SentMessage) -> None:
        """Notes where a message was stored."""
        if not span.is_recording():
            return
        span.set_attribute("messaging.message.id", sent.message_id)
        if sent.transaction_id is not None:
            span.set_attribute(TRANSACTION_ID, transaction_id_of(sent))

    def local_transaction(self, half: SentMessage, group: str, parent: Span) -> Span:
        """Begins the span of a local transaction."""
        known = _known("local transaction", None, half.topic)
        span = self._tracer.start_span(_title(known), trace.set_span_in_context(parent), attributes=known)
        if span.is_recording():
            span.set_attributes({TRANSACTION_ID: transaction_id_of(half), PRODUCER_GROUP: group})
        return span

    def end(
        self, half: SentMessage, state: LocalTransactionState, group: str | None, parent: SpanContext | None
    ) -> AbstractContextManager[Span]:
        def more() -> _Optional:
            named = {TRANSACTION_ID: transaction_id_of(half), "messaging.message.id": half.message_id}
            return {PRODUCER_GROUP: group, **named}

        known = _known(state.name.lower(), "settle", half.topic)
        return _Running(self._tracer, SpanKind.CLIENT, known, more, parent_of(parent))

    def check(self, message: TransactionMessage, group: str) -> AbstractContextManager[Span]:
        """A check may be hours later, so it is a trace of its own with a link to the half message's."""
        name = message.transaction_id
        more: _Optional = {PRODUCER_GROUP: group, TRANSACTION_ID: name, "messaging.message.id": name}
        known = _known("check", "process", message.topic)
        return _Running(self._tracer, SpanKind.CONSUMER, known, lambda: more, link=carried(message.properties))

    def received(self, messages: Sequence[ReceivedMessage], group: str, began_ns: int) -> None:
        """Notes messages that a consumer took, with a link to the context of each."""
        known = _known("poll", "receive", _topic_of(messages))
        known[_CONSUMER_GROUP] = group
        attributes: _Optional = {
            "messaging.batch.message_count": len(messages) if len(messages) > 1 else None,
            "messaging.message.id": messages[0].message_id if len(messages) == 1 else None,
        }
        found = (carried(message.properties) for message in messages[:_LINKS_MAX])
        self._tracer.start_span(
            _title(known),
            kind=SpanKind.CLIENT,
            attributes=known | _present(attributes),
            links=[Link(context) for context in found if context is not None],
            start_time=began_ns,
        ).end()

    def process(self, message: ReceivedMessage, group: str | None) -> AbstractContextManager[Span]:
        """A child of the span that sent the message."""
        context = carried(message.properties)
        known = _known("process", "process", message.topic)
        known[_PARTITION] = str(message.queue_id)
        if group is not None:
            known[_CONSUMER_GROUP] = group

        def more() -> _Optional:
            return {
                "messaging.message.id": message.message_id,
                "messaging.message.body.size": len(message.body),
                "messaging.rocketmq.message.keys": message.keys or None,
                "messaging.rocketmq.message.tag": message.tags,
                TRANSACTION_ID: message.transaction_id,
                "txstore.reconsume_times": message.reconsume_times or None,
            }

        return _Running(self._tracer, SpanKind.CONSUMER, known, more, parent_of(context), context)

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
        known = _known(name, type_, topic) | _present(attributes)
        began, ended = times_ns
        span = self._tracer.start_span(_title(known), parent_of(parent), kind, known, start_time=began)
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


class _Running(AbstractContextManager[Span]):
    """A span that is current in a `with` block. `known`: attributes that samplers see; `more`: those of recorded spans.

    A class, not a generator: spans that nobody samples must cost little.
    """

    __slots__ = ("_kind", "_known", "_link", "_more", "_parent", "_span", "_token", "_tracer")

    def __init__(
        self,
        tracer: trace.Tracer,
        kind: SpanKind,
        known: _Attributes,
        more: Callable[[], _Optional],
        parent: contexts.Context | None = None,
        link: SpanContext | None = None,
    ) -> None:
        self._tracer, self._kind, self._known, self._more = tracer, kind, known, more
        self._parent, self._link = parent, link

    def __enter__(self) -> Span:
        links = () if self._link is None else (Link(self._link),)
        known = self._known
        self._span = span = self._tracer.start_span(_title(known), self._parent, self._kind, known, links)
        if span.is_recording():
            span.set_attributes(_present(self._more()))
        self._token = contexts.attach(trace.set_span_in_context(span))
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            fail(self._span, error)
        contexts.detach(self._token)
        self._span.end()


def _topic_of(messages: Sequence[Message] | Sequence[ReceivedMessage]) -> str | None:
    """Returns the topic of all messages; None if they have several, or there are none."""
    if len(messages) == 1:
        return messages[0].topic
    topics = {message.topic for message in messages}
    return topics.pop() if len(topics) == 1 else None


def _known(name: str, type_: str | None, topic: str | None) -> _Attributes:
    """Returns what is known of an operation before it begins."""
    known: _Attributes = {"messaging.system": "rocketmq", _NAME: name}
    if type_ is not None:
        known["messaging.operation.type"] = type_
    if topic is not None:
        known[_TOPIC] = topic
    return known


def _title(known: _Attributes) -> str:
    """Returns the name of a span: its operation and its topic."""
    name, topic = known[_NAME], known.get(_TOPIC)
    return str(name) if topic is None else f"{name!s} {topic!s}"


def _present(attributes: Mapping[str, AttributeValue | None]) -> _Attributes:
    return {key: value for key, value in attributes.items() if value is not None}


def _epoch_ms(time: datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def _one(message: Message) -> _Optional:
    is_delayed = bool(message.delay_level) or message.deliver_at is not None
    kind = "fifo" if message.message_group is not None else "delay" if is_delayed else "normal"
    return {
        "messaging.message.body.size": len(message.body),
        "messaging.rocketmq.message.type": kind,
        "messaging.rocketmq.message.tag": message.tags,
        "messaging.rocketmq.message.keys": message.keys or None,
        "messaging.rocketmq.message.group": message.message_group,
        "messaging.rocketmq.message.delay_time_level": message.delay_level or None,
        "messaging.rocketmq.message.delivery_timestamp": _epoch_ms(message.deliver_at),
    }
