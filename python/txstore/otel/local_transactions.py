"""The spans of local transactions: from the half message to its end.

In:     half messages that were stored, and their ends.
Out:    spans that are current while the user's code runs, so that its own spans are their children.
Always: a span that was begun in another context than its end is ended all the same.
"""

from typing import NamedTuple

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext

from txstore.message import Message, SentMessage, transaction_id_of
from txstore.otel.spans import Spans

__all__ = ["LocalTransactions"]


class _Running(NamedTuple):
    span: Span
    half: SpanContext
    message: Message
    token: object


class LocalTransactions:
    """The local transactions that run now. Thread-safe."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        # One dict operation is atomic in CPython.
        self._running: dict[str, _Running] = {}

    def begin(self, half: SentMessage, group: str, sent: Span, message: Message) -> None:
        """Begins the span of a transaction, and makes it current. `sent` is the span of its (first) half message."""
        span = self._spans.local_transaction(half, group, sent)
        token = contexts.attach(trace.set_span_in_context(span))
        self._running[transaction_id_of(half)] = _Running(span, sent.get_span_context(), message, token)

    def message(self, half: SentMessage) -> Message | None:
        """Returns the (first) message as it was stored, with its context; None if the transaction does not run here."""
        running = self._running.get(transaction_id_of(half))
        return None if running is None else running.message

    def end(self, half: SentMessage) -> SpanContext | None:
        """Ends the span, and returns the context of the half message's; None if it ended before."""
        running = self._running.pop(transaction_id_of(half), None)
        if running is None:
            return None
        running.span.end()
        if trace.get_current_span() is running.span:
            contexts.detach(running.token)  # type: ignore[arg-type]
        return running.half
