"""OpenTelemetry: the spans of messages and transactions, in the trace of the request that caused them; metrics.

In:     a broker, of any kind.
Out:    spans by the semantic conventions for messaging; the context of a trace in each message's properties.
Always: nothing of txstore imports this, unless a server has the option `otel`. Tracing never fails a call.
"""

from txstore.otel.instrument import instrument
from txstore.otel.metrics import observe
from txstore.otel.spans import process

__all__ = ["instrument", "observe", "process"]
