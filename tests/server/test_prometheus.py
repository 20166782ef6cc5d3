"""`GET /metrics`, of a server that is one process."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from openenv.telemetry.metrics import METER

from .probe import InlineProbe, ProbeEnvironment, app_of
from .talk import Talk
from .wires import WIRES, eventually


def parsed(text):
    """Samples by name and the values of labels, in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def scrape():
    """Reads an app's metrics; counters as they grew since the first time, since a process counts for all its apps."""
    first: dict = {}

    def read(app):
        client = TestClient(app)  # without a lifespan: that would end the app's sessions
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = parsed(answer.text)
        growing = ("_total", "_count", "_sum", "_bucket")
        told = {
            key: value - first.get(key, 0.0) if key[0].endswith(growing) else value for key, value in found.items()
        }
        if not first:
            first.update(found)
        return told

    return read


def test_it_tells_of_every_number_the_issue_names(scrape):
    app = app_of(InlineProbe, max_sessions=3)
    names = {key[0] for key in scrape(app)}
    assert names >= {
        "openenv_build_info",
        "openenv_calls_executing",
        "openenv_calls_waiting",
        "openenv_connections",
        "openenv_environments_constructing",
        "openenv_event_loop_lag_seconds",
        "openenv_phase_seconds_bucket",
        "openenv_phase_seconds_count",
        "openenv_phase_seconds_sum",
        "openenv_queue_length",
        "openenv_sessions",
        "openenv_slots_held",
        "openenv_slots_limit",
        "openenv_stuck_threads",
        "openenv_worker_restarts_total",
        "openenv_workers",
    }
    found = scrape(app)
    assert [found["openenv_workers",], found["openenv_slots_limit",], found["openenv_slots_held",]] == [1, 3, 0]


@pytest.mark.parametrize("transport", WIRES)
@pytest.mark.parametrize("subprotocol", [None, "openenv.v2.msgpack"])
def test_calls_are_counted_over_every_transport(scrape, transport, subprotocol):
    app = app_of(InlineProbe)
    scrape(app)
    with WIRES[transport](app) as open_wire:
        wire = open_wire(subprotocol)
        if subprotocol is None:
            wire.ask({"type": "reset"})
            for _ in range(40):
                wire.step()
            assert wire.step("invalid")["type"] == "error"
        else:
            talk = Talk(wire)
            talk.open("s")
            talk.ask(**talk.call("reset", "s"))
            for _ in range(40):
                talk.step("s")
            assert "error" in talk.step("s", "invalid")
        if transport != "memory":  # those of tests before may still be about to end
            eventually(lambda: scrape(app)["openenv_connections",] == 1)
        found = scrape(app)
        wire.close()
    phases = ("queue", "construct", "reset", "step", "serialize")
    assert [found["openenv_phase_seconds_count", phase] for phase in phases] == [1, 1, 1, 40, 2]
    assert [found["openenv_phase_seconds_bucket", "+Inf", phase] for phase in phases] == [1, 1, 1, 40, 2]
    assert found["openenv_phase_seconds_sum", "step"] > 0
    assert found["openenv_errors_total", "client", "InvalidAction"] == 1
    assert found["openenv_sessions", "live"] == 1
    assert found["openenv_slots_held",] == 1
    if transport != "memory":
        assert found["openenv_connections",] == 1
        assert found["openenv_phase_seconds_count", "send"] > 0
        eventually(lambda: scrape(app)["openenv_connections",] == 0)


def test_buckets_add_up(scrape):
    app = app_of(InlineProbe)
    TestClient(app).post("/step", json={"action": {}})
    found = scrape(app)
    buckets = sorted(
        (float(key[1]), value)
        for key, value in found.items()
        if key[0] == "openenv_phase_seconds_bucket" and key[2] == "step"
    )
    values = [value for _, value in buckets]
    assert values == sorted(values)
    assert values[-1] == found["openenv_phase_seconds_count", "step"] > 0


def test_failures_of_every_kind_are_counted_by_blame(scrape):
    app = app_of(ProbeEnvironment, max_sessions=1)
    scrape(app)
    with WIRES["stock"](app) as open_wire:
        wire = open_wire()
        assert wire.step("raise")["type"] == "error"
        other = open_wire()
        assert other.receive()["data"]["error"] == "ServerFull"
        wire.close()
        other.close()
    found = scrape(app)
    assert found["openenv_errors_total", "environment", "StepFailed"] == 1
    assert found["openenv_errors_total", "infrastructure", "ServerFull"] == 1


def test_requests_over_http_are_counted_as_sessions_are(scrape):
    app = app_of(InlineProbe)
    scrape(app)
    client = TestClient(app)
    client.post("/reset")
    client.post("/step", json={"action": {"kind": "raise"}})
    found = scrape(app)
    assert [found["openenv_phase_seconds_count", phase] for phase in ("construct", "reset", "step")] == [2, 1, 1]
    assert found["openenv_errors_total", "environment", "StepFailed"] == 1


def test_a_server_without_metrics_has_none():
    before = METER.on
    METER.on = False
    try:
        app = app_of(InlineProbe, metrics=False)
        answer = TestClient(app).get("/metrics")
        assert answer.status_code == 404
        assert "OPENENV_METRICS" in answer.text
        TestClient(app).post("/reset")
        assert not METER.on
    finally:
        METER.on = before


def test_it_takes_a_key_of_at_least_view():
    app = app_of(InlineProbe, api_keys="view:looker-looker-looker,agent:doer-doer-doer-doer")
    client = TestClient(app)
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer doer-doer-doer-doer"}).status_code == 403
    answer = client.get("/metrics", headers={"Authorization": "Bearer looker-looker-looker"})
    assert (answer.status_code, answer.headers["x-openenv-scope"]) == (200, "view")
