"""OpenTelemetry spans for opening a session and for each reset and step; nothing is loaded while tracing is off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra, OpenEnvError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Ended = Callable[[Any, BaseException | None], None]


def start() -> Callable[[str], ConnectionTracer]:
    """Prepares tracing. If no tracer provider is set when the first client connects, spans go to a collector by OTLP
    over HTTP, as the standard variables of OpenTelemetry say (`OTEL_EXPORTER_OTLP_ENDPOINT`).

    Returns:
        A function that makes the tracer of one connection, given the `traceparent` header of its handshake or "".

    Raises:
        MissingExtra: OpenTelemetry or its exporter is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtra("opentelemetry-exporter-otlp-proto-http", "otel") from None
    tracer = trace.get_tracer("openenv")

    def tracer_of(traceparent: str) -> ConnectionTracer:
        # Not before: an app may set its provider after it has made the server.
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
        return ConnectionTracer(tracer, traceparent)

    return tracer_of


class ConnectionTracer:
    """The spans of one connection of a client.

    Args:
        tracer: Makes the spans.
        traceparent: The W3C trace context of the client's handshake, whose children the spans are. If empty, each
            span begins a trace.
    """

    __slots__ = ("_parent", "_tracer")

    def __init__(self, tracer: Tracer, traceparent: str = ""):
        self._tracer = tracer
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # An empty context instead of the current one, which belongs to other code on this loop.
        self._parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())

    def opening(
        self, session: Callable[[], str], request: str | int | None, opened: Callable[[OpenEnvError | None], None]
    ) -> Callable[[OpenEnvError | None], None]:
        """Starts a span for the opening of a session. Returns a replacement for `opened` that ends the span.

        Args:
            session: Returns the session's id, which may not be known yet.
        """
        span = self._begin("open", None, None, request)

        def ended(error: OpenEnvError | None) -> None:
            span.set_attribute("openenv.session.id", session())
            _end(span, error)
            opened(error)

        return ended

    def call(self, name: str, session: str, episode: str | None, request: str | int | None, done: Ended) -> Ended:
        """Starts a span for a call of a session. Returns a replacement for `done` that ends the span."""
        span = self._begin(name, session, episode, request)

        def ended(result: Any, error: BaseException | None) -> None:
            _end(span, error)
            done(result, error)

        return ended

    def _begin(self, name: str, session: str | None, episode: str | None, request: str | int | None) -> Span:
        from opentelemetry.trace import SpanKind

        facts = {"openenv.session.id": session, "openenv.episode.id": episode, "openenv.request.id": request}
        attributes = {key: str(value) for key, value in facts.items() if value is not None}
        return self._tracer.start_span(f"openenv.{name}", self._parent, SpanKind.SERVER, attributes)


def _end(span: Span, error: BaseException | None) -> None:
    if error is None:
        span.set_attribute("openenv.outcome", "ok")
    else:
        from opentelemetry.trace import StatusCode

        span.set_attribute("openenv.outcome", type(error).__name__)
        if isinstance(error, OpenEnvError):
            span.set_attribute("openenv.blame", error.blame)
        span.set_status(StatusCode.ERROR, str(error))
    span.end()
