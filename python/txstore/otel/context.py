"""The context of a trace in the properties of a message, as W3C's `traceparent` and `tracestate`.

Always: a context that a message has already is kept.
"""

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from txstore.errors import InvalidMessageError
from txstore.message import Message

__all__ = ["carried", "row_properties", "with_context"]

_TRACEPARENT, _TRACESTATE = "traceparent", "tracestate"
_NAME_ENDS, _VALUE_ENDS = "\x01", "\x02"
_w3c = TraceContextTextMapPropagator()


def carried(properties: Mapping[str, str]) -> SpanContext | None:
    """Returns the context that travelled in properties; None without a valid one."""
    if _TRACEPARENT not in properties:
        return None
    found = trace.get_current_span(_w3c.extract(dict(properties))).get_span_context()
    return found if found.is_valid else None


def with_context(message: Message, span: trace.Span) -> Message:
    """Returns a copy of the message that carries a span's context.

    A message that was sent before is recognized by its properties, too, so it is not changed.
    """
    properties = message.properties
    context = span.get_span_context()
    if not context.is_valid or _TRACEPARENT in properties or message.transaction_id is not None:
        return message
    # What the propagator's `inject` writes, without the copies of contexts that it needs for each message.
    properties[_TRACEPARENT] = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    if context.trace_state:
        properties[_TRACESTATE] = context.trace_state.to_header()
    try:
        return Message(
            message.topic,
            message.body,
            tags=message.tags,
            keys=message.keys or None,
            properties=properties,
            flag=message.flag,
            delay_level=message.delay_level,
            deliver_at=message.deliver_at,
            message_group=message.message_group,
        )
    except InvalidMessageError:
        return message  # Its own properties leave no room.


def row_properties(text: str) -> dict[str, str]:
    """Returns the properties of a row, from the form that RocketMQ's protocol has for them."""
    pairs = (pair.partition(_NAME_ENDS) for pair in text.split(_VALUE_ENDS) if pair)
    return {name: value for name, _, value in pairs}
