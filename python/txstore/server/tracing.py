"""Starts the spans of a server.

In:     the store that is served.
Out:    a thread that notes a span for each record with the context of a trace.
Always: loads OpenTelemetry only here, so a server without the option `otel` does not need it.
Not here: the spans (`txstore.otel`).
"""

from typing import Protocol

from txstore._native import Store
from txstore.server.validation import check_packages

__all__ = ["ServerSpans", "check_span_packages", "start_spans"]


class ServerSpans(Protocol):
    """What notes the spans."""

    def stop(self) -> None: ...


def check_span_packages() -> None:
    """Raises InvalidOptionError without OpenTelemetry."""
    # It imports all of them.
    check_packages("txstore.otel.log_spans", "otel", "otel")


def start_spans(store: Store) -> ServerSpans:
    """Begins at the store's visible end. Raises InvalidOptionError without OpenTelemetry."""
    check_span_packages()
    from txstore.otel.log_spans import LogSpans

    return LogSpans(store)
