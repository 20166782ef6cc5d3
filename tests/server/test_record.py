"""Log lines of failed calls, and spans of all of them: which session, episode and request they name."""

from __future__ import annotations

import json
import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from openenv.telemetry.logs import JsonLines

from .probe import AsyncProbe, InlineProbe, ProbeEnvironment, app_of
from .talk import Talk
from .wires import WIRES, SocketWire, served

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
anywhere = pytest.mark.parametrize("environment", [ProbeEnvironment, InlineProbe, AsyncProbe])


class Lines(logging.Handler):
    """Keeps records as the lines of JSON that they become."""

    def __init__(self):
        super().__init__()
        self.setFormatter(JsonLines())
        self.found = []

    def emit(self, record):
        self.found.append(json.loads(self.format(record)))

    def failures(self):
        """What was said of failed calls: what they are about, and what is said."""
        return [
            (line.get("session"), line.get("episode"), line.get("request"), line["message"])
            for line in self.found
            if "session" in line
        ]


@pytest.fixture
def lines():
    handler = Lines()
    logger = logging.getLogger("openenv")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@anywhere
@pytest.mark.parametrize("transport", ["memory", "fast"])
def test_v1_names_session_episode_and_the_count_of_the_request(lines, environment, transport):
    with WIRES[transport](app_of(environment)) as open_wire:
        wire = open_wire()
        wire.step()
        wire.step("raise")
        wire.ask({"type": "reset", "data": {"episode_id": "e9"}})
        wire.step("raise")
        wire.step("invalid")
        wire.close()
    found = lines.failures()
    assert len({session for session, *_ in found}) == 1
    assert [facts[1:3] for facts in found] == [(None, 2), ("e9", 4), ("e9", 5)]
    for session, _, _, message in found:
        assert message.startswith(f"session {session}: ")
    assert ["exception" in line for line in lines.found if "session" in line] == [True, True, False]


@anywhere
@pytest.mark.parametrize("transport", ["memory", "fast"])
def test_v2_names_session_episode_and_the_id_of_the_request(lines, environment, transport):
    with WIRES[transport](app_of(environment)) as open_wire:
        talk = Talk(open_wire("openenv.v2.msgpack"))
        talk.open("one")
        talk.ask(**talk.call("reset", "one", kwargs={"episode_id": "e9"}))
        number = talk.tell_step("one", "raise")
        talk.receive()
        batch = talk.tell("batch", calls=[talk.step_call("one"), talk.step_call("one", "invalid")])
        talk.receive()
        nobody = talk.tell("state", session="two")
        talk.receive()
        talk.wire.close()
    assert [facts[:3] for facts in lines.failures()] == [
        ("one", "e9", str(number)),
        ("one", "e9", f"{batch}.1"),
        ("two", None, str(nobody)),
    ]


def test_one_line_for_a_failed_call(lines):
    with WIRES["memory"](app_of(InlineProbe)) as open_wire:
        wire = open_wire()
        wire.step("raise")
        wire.close()
    assert len(lines.failures()) == 1


@pytest.fixture
def exporter(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def ours(exporter):
    """The spans that are not FastAPI's."""
    return [span for span in exporter.get_finished_spans() if span.name.startswith("openenv.")]


def told(exporter):
    """What spans say, by their order of ending."""
    names = ("session.id", "episode.id", "request.id", "outcome")
    return [(span.name, *(span.attributes.get(f"openenv.{name}") for name in names)) for span in ours(exporter)]


@anywhere
@pytest.mark.parametrize("transport", WIRES)
def test_v2_spans(exporter, environment, transport):
    with WIRES[transport](app_of(environment, tracing=True)) as open_wire:
        talk = Talk(open_wire("openenv.v2.json"))
        talk.open("one")
        talk.ask(**talk.call("reset", "one", kwargs={"episode_id": "e9"}))
        talk.step("one")
        talk.step("one", "raise")
        talk.step("one", "invalid")
        talk.ask("state", session="one")
        talk.wire.close()
    assert told(exporter) == [
        ("openenv.open", "one", None, "1", "ok"),
        ("openenv.reset", "one", "e9", "2", "ok"),
        ("openenv.step", "one", "e9", "3", "ok"),
        ("openenv.step", "one", "e9", "4", "StepFailed"),
        ("openenv.step", "one", "e9", "5", "InvalidAction"),
    ]


@anywhere
def test_v1_spans(exporter, environment):
    with WIRES["fast"](app_of(environment, tracing=True)) as open_wire:
        wire = open_wire()
        wire.ask({"type": "reset"})
        wire.step()
        wire.close()
    found = told(exporter)
    session = found[0][1]
    assert found == [
        ("openenv.open", session, None, None, "ok"),
        ("openenv.reset", session, None, "1", "ok"),
        ("openenv.step", session, None, "2", "ok"),
    ]


@pytest.mark.parametrize("fast", [True, False])
def test_spans_are_children_of_the_clients_handshake(exporter, fast):
    from openenv.server.transports.uvicorn import FastPath

    app = app_of(InlineProbe, tracing=True)
    with served(app, http="httptools", **({"ws": FastPath} if fast else {"ws": "websockets-sansio"})) as address:
        wire = SocketWire(f"ws://{address}/ws", additional_headers={"traceparent": PARENT})
        wire.step()
        wire.close()
    assert {format(span.context.trace_id, "032x") for span in ours(exporter)} == {PARENT.split("-")[1]}
    assert {format(span.parent.span_id, "016x") for span in ours(exporter)} == {PARENT.split("-")[2]}


def test_without_the_setting_nothing_is_traced(exporter):
    with WIRES["memory"](app_of(InlineProbe)) as open_wire:
        wire = open_wire()
        wire.step()
        wire.close()
    assert ours(exporter) == []
