"""The spans of messages that a forwarder moves from a database to the log.

In:     rows, whose messages carry the context of the span that inserted them.
Out:    a span for each row with such a context, as its child.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.trace import SpanContext, SpanKind

from txstore._native import OutboxRow
from txstore.otel.context import carried, row_properties
from txstore.otel.spans import PRODUCER_GROUP, Spans
from txstore.producer.outbox import Outboxes

__all__ = ["trace_rows"]


def trace_rows(outboxes: Outboxes, spans: Spans) -> None:
    """Gives the logs that forwarders get from now on spans."""
    new_log = outboxes._new_log

    def traced(remembered: Callable[[str], str | None]) -> Any:
        log: Any = new_log(remembered)
        append, append_many = log.append, log.append_many

        def append_one(row: OutboxRow, queue_id: int) -> object:
            with_rows = _Forwarding(spans, (row,), (queue_id,))
            return with_rows.note(lambda: [append(row, queue_id)])[0]

        def append_all(rows: Sequence[OutboxRow], queue_ids: Sequence[int], *, once: bool) -> Sequence[object]:
            return _Forwarding(spans, rows, queue_ids).note(lambda: append_many(rows, queue_ids, once=once))

        log.append, log.append_many = append_one, append_all
        return log

    outboxes._new_log = traced


class _Forwarding:
    """One append of rows."""

    def __init__(self, spans: Spans, rows: Sequence[OutboxRow], queue_ids: Sequence[int]) -> None:
        self._spans = spans
        self._rows = list(zip(rows, queue_ids, strict=True))

    def note(self, append: Callable[[], Sequence[object]]) -> Sequence[object]:
        """Appends, and notes a span for each row."""
        began = time.time_ns()
        try:
            fates = append()
        except Exception as error:
            self._note(began, [error] * len(self._rows))
            raise
        self._note(began, fates)
        return fates

    def _note(self, began: int, fates: Sequence[object]) -> None:
        ended = time.time_ns()
        for (row, queue_id), fate in zip(self._rows, fates, strict=True):
            parent = carried(row_properties(row.properties_text))
            if parent is not None and parent.trace_flags.sampled:
                self._span(row, queue_id, fate, parent, (began, ended))

    def _span(
        self, row: OutboxRow, queue_id: int, fate: object, parent: SpanContext, times_ns: tuple[int, int]
    ) -> None:
        error = fate if isinstance(fate, Exception) else None
        attributes = {
            PRODUCER_GROUP: row.producer_group,
            "messaging.message.id": row.message_id,
            "messaging.destination.partition.id": str(queue_id),
            "txstore.row.fate": None if error is not None else str(fate),
        }
        self._spans.at("forward", "send", row.topic, SpanKind.CLIENT, parent, attributes, times_ns, error)
