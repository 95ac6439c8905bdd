"""Telemetry: exports the spans of a command by OTLP, as OpenTelemetry's variables say (OTEL_EXPORTER_OTLP_ENDPOINT …).

Always: loads OpenTelemetry's SDK only when it is asked for. A program that has a provider of its own keeps it.
"""

from txstore.errors import InvalidOptionError

__all__ = ["export_spans"]


def export_spans(service: str) -> None:
    """Has the process export its spans, over HTTP. `service`: its name unless OTEL_SERVICE_NAME has one.

    What is not exported at the end of the process is exported then. Raises InvalidOptionError without the packages.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            f"otel needs {error.name}, which is not installed\nhint: pip install 'txstore[otel]'", option="otel"
        ) from None
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    named = Resource({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
