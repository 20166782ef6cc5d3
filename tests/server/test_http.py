from __future__ import annotations

import logging
import threading
import time
from functools import partial

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv.environment import Environment
from openenv.server import HTTPEnvServer, create_app
from openenv.settings import ServerSettings
from openenv.types import EnvironmentMetadata

from .probe import AsyncProbe, BrokenProbe, InlineProbe, ProbeAction, ProbeEnvironment, ProbeObservation
from .wires import eventually


def client_of(environment=ProbeEnvironment, **options):
    options.setdefault("max_concurrent_envs", 4)
    settings = ServerSettings.read({}, **options.pop("settings", {}))
    return TestClient(
        create_app(environment, ProbeAction, ProbeObservation, env_name="probe", settings=settings, **options)
    )


@pytest.fixture(params=[ProbeEnvironment, InlineProbe, AsyncProbe], ids=["thread", "inline", "loop"])
def client(request):
    with client_of(request.param) as client:
        yield client


def test_health(client):
    assert client.get("/health").json() == {"status": "healthy"}


def test_reset_step_and_state_stand_alone(client):
    reply = client.post("/reset", json={"seed": 4, "unknown": 1}).json()
    assert (reply["observation"]["value"], reply["reward"], reply["done"]) == (4, None, False)
    assert client.post("/reset").json()["observation"]["value"] is None
    for _ in range(2):
        reply = client.post("/step", json={"action": {"number": 6}}).json()
        assert (reply["observation"]["value"], reply["observation"]["step_count"], reply["reward"]) == (6, 1, 1.5)
    assert client.get("/state").json() == {"episode_id": "probe", "step_count": 0}
    eventually(lambda: client.app.state.openenv.active_sessions == 0)


def test_replies_have_every_key_of_the_released_package_and_rewards_are_floats():
    class Plain(ProbeEnvironment):
        def reset(self, seed=None):
            return ProbeObservation()

        def step(self, action):
            return ProbeObservation(reward=bool(action.number), metadata={"a": 1} if action.number else {})

    with client_of(Plain) as client:
        assert client.post("/reset").text.endswith('"reward":null,"done":false,"metadata":null}')
        zero, one = (client.post("/step", json={"action": {"number": n}}).text for n in (0, 1))
        assert zero.endswith('"reward":0.0,"done":false,"metadata":null}')
        assert one.endswith('"reward":1.0,"done":false,"metadata":{"a":1}}')


def test_a_step_gets_the_arguments_it_takes():
    class Patient(ProbeEnvironment):
        def step(self, action, timeout_s=None, *, urgency=None):
            return ProbeObservation(value=[timeout_s, urgency])

    with client_of(Patient) as client:
        body = {"action": {}, "timeout_s": 2.5, "urgency": "low", "other": 1, "request_id": "r1"}
        assert client.post("/step", json=body).json()["observation"]["value"] == [2.5, "low"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"action": {"jump": 1}}, ["jump"]),
        ({"action": {"kind": "invalid"}}, ["kind"]),
        ({}, ["body", "action"]),
        ({"action": 5}, ["body", "action"]),
    ],
)
def test_an_invalid_action_is_422_with_details(client, body, place):
    reply = client.post("/step", json=body)
    assert reply.status_code == 422
    assert place in [fault["loc"] for fault in reply.json()["detail"]]


@pytest.mark.parametrize("kind", ["raise", "nan-reward", "object", "exit", "snare-reward", "snare-done"])
def test_a_failed_step_is_500_as_json(client, kind, caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    reply = client.post("/step", json={"action": {"kind": kind}})
    assert reply.status_code == 500
    body = reply.json()
    assert (body["error"], body["blame"], body["code"]) == ("StepFailed", "environment", "EXECUTION_ERROR")
    assert body["message"] == body["detail"]
    assert "POST /step" in caplog.text
    assert client.post("/step", json={"action": {}}).status_code == 200


def test_a_full_server_is_503_and_says_when_to_come_back():
    with client_of(max_concurrent_envs=1) as client, client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset"})
        socket.receive_json()
        reply = client.post("/reset")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["max_sessions"] == 1


def test_a_constructor_that_raises_is_500():
    with client_of(BrokenProbe) as client:
        body = client.post("/reset").json()
        assert (body["error"], body["factory_name"]) == ("FactoryFailed", "BrokenProbe")


def test_schema_names_every_part(client):
    schema = client.get("/schema").json()
    assert set(schema) == {"action", "observation", "state", "reset_observation"}
    assert set(schema["action"]["properties"]) == {"metadata", "kind", "number"}
    assert "value" in schema["reset_observation"]["properties"]


def test_the_documentation_is_served(client):
    assert client.get("/docs").status_code == 200
    assert isinstance(client.get("/openapi.json").json()["info"]["version"], str)


def test_metadata_needs_no_instance_where_the_class_says_nothing():
    with client_of(BrokenProbe) as client:
        metadata = client.get("/metadata").json()
        assert metadata["name"] == "BrokenProbe"
        assert metadata["version"]
        assert metadata["readme_content"] is None


def test_metadata_comes_from_the_environment_where_it_has_some(tmp_path):
    made = []

    class Described(ProbeEnvironment):
        def __init__(self):
            super().__init__()
            made.append(threading.get_ident())

        def get_metadata(self):
            return EnvironmentMetadata(name="described", description="of its own", author="me")

    (tmp_path / "README.md").write_text("# Read me")
    with client_of(Described, settings={"readme_path": str(tmp_path / "README.md")}) as client:
        metadata = client.get("/metadata").json()
        assert (metadata["name"], metadata["author"]) == ("described", "me")
        assert metadata["readme_content"] == "# Read me"
        assert len(made) == 1
        eventually(lambda: client.app.state.openenv.active_sessions == 0)


def test_metadata_of_a_factory_is_that_of_what_it_makes():
    with client_of(lambda: ProbeEnvironment()) as client:
        assert client.get("/metadata").json()["name"] == "ProbeEnvironment"


@pytest.mark.parametrize("name", ["none.md", "too-long-for-a-file" * 20])
def test_a_missing_readme_is_no_error(tmp_path, name):
    with client_of(settings={"readme_path": str(tmp_path / name)}) as client:
        assert client.get("/metadata").json()["readme_content"] is None


def test_routes_can_be_added_and_deleted():
    client = client_of()
    app: FastAPI = client.app

    @app.get("/extra")
    def extra() -> str:
        return "mine"

    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/metadata"]
    with client:
        assert client.get("/extra").json() == "mine"
        assert client.get("/metadata").status_code == 404


def test_an_app_of_ones_own_can_serve_an_environment():
    app = FastAPI()
    server = HTTPEnvServer(env=ProbeEnvironment, action_cls=ProbeAction, observation_cls=ProbeObservation)
    server.register_routes(app)
    with TestClient(app) as client:
        assert client.post("/reset").status_code == 200
        assert client.post("/step", json={"action": {"kind": "raise"}}).status_code == 500


def test_a_partial_is_a_factory():
    with client_of(partial(ProbeEnvironment)) as client:
        assert client.post("/reset").status_code == 200


def test_environments_may_leave_out_nearly_everything():
    class Bare(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            pass

        def reset(self):
            return ProbeObservation(value="bare")

        def step(self, action):
            return {"value": action.number, "reward": 2, "done": True}

        @property
        def state(self):
            return {"anything": [1, 2]}

    with client_of(Bare) as client:
        assert client.post("/reset", json={"seed": 1}).json()["observation"]["value"] == "bare"
        step = client.post("/step", json={"action": {"number": 3}}).json()
        assert step == {"observation": {"value": 3}, "reward": 2, "done": True, "metadata": None}
        assert isinstance(step["reward"], float)
        assert client.get("/state").json() == {"anything": [1, 2]}


def test_a_step_is_answered_at_its_deadline_wherever_the_time_went():
    """The thread's call goes on; the request does not wait for it, nor for the session's end."""
    ProbeEnvironment.forget()
    with client_of() as client:
        began = time.monotonic()
        reply = client.post("/step", json={"action": {"kind": "wait"}, "timeout_s": 0.2})
        assert time.monotonic() - began < 15  # the environment itself would give up after 20
        assert reply.status_code == 504
        facts = reply.json()
        assert (facts["error"], facts["blame"], facts["retryable"]) == ("StepTimeout", "environment", False)
        assert "0.2 s" in facts["message"]
        ProbeEnvironment.gate.set()
        eventually(lambda: client.app.state.openenv.active_sessions == 0)
        assert client.post("/step", json={"action": {}, "timeout_s": 20}).status_code == 200


def test_a_coroutine_is_stopped_at_the_deadline():
    AsyncProbe.forget()
    with client_of(AsyncProbe) as client:

        def late() -> bool:
            assert client.post("/step", json={"action": {"kind": "hang"}, "timeout_s": 0.1}).status_code == 504
            return AsyncProbe.waiting.is_set()  # else its time was over before its environment was made

        eventually(late)
        assert AsyncProbe.stopped.wait(20)
        eventually(lambda: client.app.state.openenv.active_sessions == 0)


def test_a_deadline_holds_for_the_constructor():
    made = threading.Event()

    class Slow(ProbeEnvironment):
        def __init__(self):
            assert made.wait(20)
            super().__init__()

    with client_of(Slow) as client:
        assert client.post("/step", json={"action": {}, "timeout_s": 0.1}).status_code == 504
        made.set()
        eventually(lambda: client.app.state.openenv.active_sessions == 0)


def test_a_deadline_of_the_environments_own_is_its_own():
    class Impatient(InlineProbe):
        def step(self, action):
            raise TimeoutError("the simulator did not answer")

    with client_of(Impatient) as client:
        reply = client.post("/step", json={"action": {}, "timeout_s": 20})
        assert (reply.status_code, reply.json()["error"]) == (500, "StepFailed")


def test_a_deadline_that_is_endless_is_none():
    with client_of() as client:
        body = '{"action": {}, "timeout_s": Infinity}'
        assert client.post("/step", content=body, headers={"Content-Type": "application/json"}).status_code == 200


def test_sessions_are_listed_with_what_they_do():
    with client_of(InlineProbe) as client:
        assert client.get("/sessions").json() == []
        with client.websocket_connect("/ws") as socket:
            for _ in range(2):
                socket.send_json({"type": "step", "data": {}})
                socket.receive_json()
            (line,) = client.get("/sessions").json()
            assert set(line) == {"id", "state", "age_s", "idle_s", "steps", "worker", "peer"}
            assert (line["state"], line["steps"], line["worker"]) == ("live", 2, None)
            assert line["peer"] == "testclient:50000"
            assert 0 <= line["idle_s"] <= line["age_s"]
