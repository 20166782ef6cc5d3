"""`GET /ready`: whether a session can be had."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from openenv.server import create_app
from openenv.settings import ServerSettings

from .probe import ProbeAction, ProbeEnvironment, ProbeObservation


@pytest.fixture
def gate():
    ProbeEnvironment.gate.clear()
    yield ProbeEnvironment.gate
    ProbeEnvironment.gate.set()


def app_of(max_sessions=1, **settings):
    settings = ServerSettings.read({}, **settings)
    return create_app(
        ProbeEnvironment, ProbeAction, ProbeObservation, max_concurrent_envs=max_sessions, settings=settings
    )


def hang(client):
    """A step that does not end in its time."""
    session = client.post("/sessions").json()["session_id"]
    action = {"action": {"kind": "wait"}, "timeout_s": 0.1}
    answer = client.post("/step", json=action, headers={"X-Session-ID": session})
    assert answer.status_code == 504
    return answer.json()["message"]


def test_a_server_is_ready_when_it_serves():
    with TestClient(app_of()) as client:
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
        assert client.head("/ready").status_code in (200, 405)


def test_a_full_server_is_ready():
    with TestClient(app_of()) as client:
        client.post("/sessions")
        assert client.post("/sessions").status_code == 503
        assert client.get("/ready").status_code == 200


def test_a_server_that_stops_is_not():
    app = app_of()
    with TestClient(app) as client:
        app.state.openenv.drain(1.0)
        answer = client.get("/ready")
        assert answer.status_code == 503
        assert "stopping" in answer.json()["reason"]
        assert client.get("/health").status_code == 200


def test_a_step_that_hangs_is_left_behind_and_the_server_is_ready(gate):
    with TestClient(app_of()) as client:
        message = hang(client)
        assert "a thread cannot be stopped: it is left behind" in message
        assert "--isolation process" in message
        assert client.get("/ready").status_code == 200
        assert client.post("/sessions").status_code == 200


def test_when_no_more_may_be_left_behind_it_is_not_ready_before_one_returns(gate):
    with TestClient(app_of(max_abandoned_threads=1)) as client:
        hang(client)
        hang(client)
        answer = client.get("/ready")
        assert answer.status_code == 503
        assert "max_abandoned_threads" in answer.json()["reason"]
        gate.set()
        while client.get("/ready").status_code != 200:
            pass
        assert client.post("/sessions").status_code == 200


@pytest.mark.slow
def test_one_slot_that_is_left_is_enough(gate):
    with TestClient(app_of(2, max_abandoned_threads=0)) as client:
        hang(client)
        assert client.get("/ready").status_code == 200
        hang(client)
        assert client.get("/ready").status_code == 503
