from __future__ import annotations

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from openenv.errors import MissingExtra, ServerFull, StepFailed
from openenv.telemetry import tracing
from openenv.telemetry.tracing import ConnectionTracer

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


def test_what_collects_nothing_is_said(caplog):
    tracing.start()("")
    assert "opentelemetry-instrument" in caplog.text


def test_without_opentelemetry_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match=r"opentelemetry-sdk is not installed: pip install 'openenv\[otel\]'"):
        tracing.start()
