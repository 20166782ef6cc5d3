from __future__ import annotations

import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from openenv.client import GenericEnvClient
from openenv.errors import MissingExtra, ServerFull, StepFailed
from openenv.providers.process import free_port
from openenv.telemetry import tracing
from openenv.telemetry.tracing import ConnectionTracer

from ..cli.process import serving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("test")
    provider.shutdown()


def test_a_call_is_a_span_from_its_beginning_to_its_end(tracer, exporter):
    heard = []
    done = ConnectionTracer(tracer).call("step", "s1", "e1", 4, lambda *what: heard.append(what))
    assert exporter.get_finished_spans() == ()
    done("observation", None)
    assert heard == [("observation", None)]
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("openenv.step", trace.SpanKind.SERVER, None)
    assert dict(span.attributes) == {
        "openenv.session.id": "s1",
        "openenv.episode.id": "e1",
        "openenv.request.id": "4",
        "openenv.outcome": "ok",
    }
    assert span.status.status_code is trace.StatusCode.UNSET


def test_a_failure_is_its_outcome(tracer, exporter):
    ConnectionTracer(tracer).call("reset", "s1", None, None, lambda *_: None)(None, StepFailed("it raised"))
    (span,) = exporter.get_finished_spans()
    assert span.attributes["openenv.outcome"] == "StepFailed"
    assert span.attributes["openenv.blame"] == "environment"
    assert "openenv.episode.id" not in span.attributes
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, "it raised")


def test_an_opening_is_a_span(tracer, exporter):
    heard = []
    trail = ConnectionTracer(tracer)
    trail.opening(lambda: "s1", 1, heard.append)(None)
    full = ServerFull(1, 1)
    trail.opening(lambda: "s2", 2, heard.append)(full)
    assert heard == [None, full]
    assert [span.attributes["openenv.outcome"] for span in exporter.get_finished_spans()] == ["ok", "ServerFull"]
    assert [span.attributes["openenv.session.id"] for span in exporter.get_finished_spans()] == ["s1", "s2"]


def test_spans_continue_the_trace_of_the_client(tracer, exporter):
    ConnectionTracer(tracer, PARENT).call("step", "s1", None, 1, lambda *_: None)(None, None)
    (span,) = exporter.get_finished_spans()
    assert format(span.context.trace_id, "032x") == PARENT.split("-")[1]
    assert format(span.parent.span_id, "016x") == PARENT.split("-")[2]


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_without_a_trace_of_the_client_each_begins_one(tracer, exporter, header):
    with tracer.start_as_current_span("something else that runs here"):
        ConnectionTracer(tracer, header).call("step", "s1", None, 1, lambda *_: None)(None, None)
    assert exporter.get_finished_spans()[0].parent is None


class Collector(ThreadingHTTPServer):
    """Receives spans as a collector does, by OTLP over HTTP.

    Attributes:
        spans: Name and outcome of each, by the name of its service.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), CollectorRequest)
        self.spans = {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class CollectorRequest(BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in request.resource_spans:
            (service,) = (
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            )
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                facts = {each.key: each.value.string_value for each in span.attributes}
                self.server.spans.setdefault(service, []).append((span.name, facts["openenv.outcome"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Prints nothing."""


@pytest.fixture
def collector():
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def play(url):
    with GenericEnvClient(url).sync() as env:
        env.reset()
        env.step({"message": "hello"})


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_collector_has_all_spans_of_a_server_when_it_has_ended(collector, workers):
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "echoes",
        "OPENENV_TRACING": "true",
    }
    with serving("echo", "--workers", workers, **variables) as server:
        play(server.url)
        assert server.end(signal.SIGTERM)[0] == 0
    names = ["openenv.open", "openenv.reset", "openenv.step"]
    assert {service: sorted(spans) for service, spans in collector.spans.items()} == {
        "echoes": [(name, "ok") for name in names]
    }


@pytest.mark.slow
@pytest.mark.real
def test_a_collector_that_is_away_is_named_in_the_log_and_keeps_no_server():
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OPENENV_TRACING": "true"}
    with serving("echo", **variables) as server:
        play(server.url)
        code, said = server.end(signal.SIGTERM)
    assert code == 0
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://127.0.0.1:") in said


def test_without_opentelemetry_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match=r"otlp-proto-http is not installed: pip install 'openenv\[otel\]'"):
        tracing.start()
