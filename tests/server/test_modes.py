"""Production mode: what drives an episode is not there, on any transport, but for keys of scope control."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv.errors import OpenEnvError, UsageError
from openenv.server import HTTPEnvServer, create_app
from openenv.server.auth import HANDSHAKE, Authenticator, RequestHead, Scope
from openenv.server.transports.uvicorn import FastPath
from openenv.settings import ServerSettings
from openenv.types import Action, ServerMode

from .probe import ProbeEnvironment, ProbeObservation
from .scripted import End
from .wires import SocketWire, served

CONTROL, AGENT, VIEW = "the-key-of-control-here", "the-key-of-an-agent-here", "the-key-of-a-viewer-here"
KEYS = f"control:{CONTROL},agent:{AGENT},view:{VIEW}"
HIDDEN: list[tuple[str, str, Any]] = [
    ("POST", "/reset", None),
    ("POST", "/step", {"action": {}}),
    ("POST", "/step", {"action": {"jump": 1}}),
    ("POST", "/step", "nonsense"),
    ("GET", "/state", None),
    ("GET", "/sessions", None),
    ("POST", "/sessions", None),
    ("DELETE", "/sessions/nobody", None),
    ("GET", "/probe/splits", None),
    ("POST", "/probe/tasks", {"split": "train"}),
    ("POST", "/probe/num_tasks", {"split": "train"}),
    ("POST", "/probe/task", {"split": "train", "index": 0}),
    ("POST", "/probe/task_range", {"split": "train"}),
]
# Not for a key of control either.
PAGE: list[tuple[str, str, Any]] = [
    ("GET", "/web", None),
    ("GET", "/web/", None),
    ("GET", "/web/assets/index.js", None),
    ("GET", "/web/frame", None),
    ("GET", "/web/metadata", None),
    ("GET", "/web/panel", None),
    ("POST", "/web/reset", None),
    ("POST", "/web/step", {"action": {}}),
    ("GET", "/web/state", None),
    ("GET", "/", None),
]
THERE = ["/health", "/metadata", "/schema", "/list_environments"]


class ToolAction(Action):
    type: Literal["call_tool", "list_tools", "move"] = "move"
    number: int = 0


class ToolEnvironment(ProbeEnvironment):
    execution = "inline"

    def step(self, action: ToolAction) -> ProbeObservation:
        self._steps += 1
        return ProbeObservation(value=action.type, step_count=self._steps)

    def list_splits(self) -> list[str]:
        return ["train"]


def app_of(mode: Any = "production", keys: str | None = None, **settings: Any) -> FastAPI:
    return create_app(
        ToolEnvironment,
        ToolAction,
        ProbeObservation,
        env_name="probe",
        max_concurrent_envs=4,
        mode=mode,
        settings=ServerSettings.read({}, api_keys=keys, **settings),
    )


@pytest.fixture(params=["asgi", "stock", "fast"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


def client_of(transport: str, app: FastAPI) -> Iterator[Any]:
    if transport == "asgi":
        with TestClient(app) as client:
            yield client
    else:
        ws = FastPath if transport == "fast" else "websockets-sansio"
        with served(app, ws=ws) as address, httpx.Client(base_url=f"http://{address}", trust_env=False) as client:
            yield client


@pytest.fixture
def open_server(transport: str) -> Iterator[Any]:
    yield from client_of(transport, app_of())


@pytest.fixture
def keyed_server(transport: str) -> Iterator[Any]:
    yield from client_of(transport, app_of(keys=KEYS))


def shown(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_what_drives_an_episode_is_not_there(open_server):
    nowhere = open_server.get("/nowhere")
    for method, path, body in [*HIDDEN, *PAGE]:
        answer = open_server.request(method, path, json=body)
        assert (answer.status_code, answer.content) == (404, nowhere.content), (method, path)
    # Not even as the wrong method for a path.
    for path in ("/reset", "/step", "/state"):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            assert open_server.request(method, path).status_code == 404
    for path in THERE:
        assert open_server.get(path).status_code == 200
    documented = set(open_server.get("/openapi.json").json()["paths"])
    assert documented.isdisjoint(path for _, path, _ in [*HIDDEN, *PAGE])
    assert not any(path.startswith(("/sessions", "/probe/")) for path in documented)
    assert set(THERE) <= documented


def test_a_key_of_control_drives_and_others_find_nothing(keyed_server):
    for key in (AGENT, VIEW):
        for method, path, body in HIDDEN:
            answer = keyed_server.request(method, path, json=body, headers=shown(key))
            assert (answer.status_code, answer.json()["error"]) == (404, "Hidden"), (method, path)
            assert "OPENENV_MODE" in answer.json()["message"]
    for method, path, body in HIDDEN:
        assert keyed_server.request(method, path, json=body).status_code == 401
    driver = shown(CONTROL)
    for method, path, body in PAGE:
        assert keyed_server.request(method, path, json=body).status_code == 401
        for key in (AGENT, VIEW, CONTROL):
            assert keyed_server.request(method, path, json=body, headers=shown(key)).status_code == 404, (
                method,
                path,
            )
    assert keyed_server.post("/reset", headers=driver).status_code == 200
    assert keyed_server.post("/step", json={"action": {}}, headers=driver).status_code == 200
    assert keyed_server.get("/state", headers=driver).status_code == 200
    assert keyed_server.get("/probe/splits", headers=driver).status_code == 200
    name = keyed_server.post("/sessions", headers=driver).json()["session_id"]
    assert keyed_server.delete(f"/sessions/{name}", headers=driver).status_code == 200
    # For anybody who may read it.
    documented = keyed_server.get("/openapi.json", headers=driver).json()["paths"]
    assert "/reset" not in documented


@pytest.mark.parametrize("ws", [FastPath, "websockets-sansio"])
def test_over_websocket_a_client_without_keys_drives_its_own_episode(ws):
    """Existing clients do, and HTTP offers nothing but tools."""
    with served(app_of("PRODUCTION"), ws=ws) as address:
        wire = SocketWire(f"ws://{address}/ws")
        assert wire.ask({"type": "reset"})["type"] == "observation"
        assert wire.ask({"type": "step", "data": {"type": "move"}})["data"]["observation"]["value"] == "move"
        assert wire.ask({"type": "state"})["type"] == "state"
        wire.close()


@pytest.mark.parametrize("ws", [FastPath, "websockets-sansio"])
def test_over_websocket_only_tools_are_served_for_keys_of_agents(ws):
    with served(app_of(keys=KEYS), ws=ws) as address:
        wire = SocketWire(f"ws://{address}/ws", additional_headers=shown(AGENT))
        for message in ({"type": "reset"}, {"type": "state"}, {"type": "step", "data": {"type": "move"}}):
            error = wire.ask(message)["data"]
            assert (error["error"], error["code"]) == ("Forbidden", "EXECUTION_ERROR")
        # The session lives on, and tools are served.
        tool = wire.ask({"type": "step", "data": {"type": "call_tool"}})["data"]
        assert tool["observation"]["value"] == "call_tool"
        wire.close()
        wire = SocketWire(f"ws://{address}/ws", additional_headers=shown(CONTROL))
        assert wire.ask({"type": "reset"})["type"] == "observation"
        assert wire.ask({"type": "state"})["type"] == "state"
        wire.close()


@pytest.mark.parametrize("subprotocol", ["openenv.v2.json", "openenv.v2.msgpack"])
async def test_over_the_second_protocol_too(subprotocol):
    app = app_of(keys=KEYS)
    server = app.state.openenv
    principal = server.authenticator.admit(
        RequestHead(HANDSHAKE, "/ws", {b"authorization": f"Bearer {AGENT}".encode()})
    )
    assert principal.scope is Scope.AGENT
    end = End(server, subprotocol, principal)
    end.now("open", session="one", token="token-of-the-first-session")
    for number, (op, more) in enumerate((("reset", {}), ("step", {"action": {"type": "move"}})), 1):
        assert end.now(op, session="one", seq=1, **more)["error"]["error"] == "Forbidden", number
    assert end.now("state", session="one")["error"]["error"] == "Forbidden"
    assert end.now("step", session="one", seq=1, action={"type": "call_tool"})["observation"]["value"] == "call_tool"
    calls = [{"op": "reset", "session": "one", "seq": 2}]
    (item,) = end.now("batch", calls=calls)["results"]
    assert item["error"]["error"] == "Forbidden"
    end.cut()
    await server.aclose()


def test_a_socket_cannot_be_attached_by_a_name_that_nobody_could_make(open_server):
    server = open_server
    assert server.post("/sessions").status_code == 404


def test_simulation_is_what_there_is_otherwise(transport):
    for mode in (None, "simulation", ServerMode.SIMULATION):
        for client in client_of(transport, app_of(mode)):
            assert client.post("/reset").status_code == 200
            assert "/reset" in client.get("/openapi.json").json()["paths"]


def test_the_setting_and_the_argument_which_wins():
    settings = ServerSettings.read({"OPENENV_MODE": "production"})
    assert Authenticator(settings, time.monotonic).production
    assert not Authenticator(ServerSettings.read({}), time.monotonic).production
    for mode, production in ((None, True), ("simulation", False), (ServerMode.PRODUCTION, True)):
        app = FastAPI()
        server = HTTPEnvServer(ToolEnvironment, ToolAction, ProbeObservation, settings=settings)
        server.register_routes(app, mode=mode)
        assert server.authenticator.production is production
        with TestClient(app) as client:
            assert client.post("/reset").status_code == (404 if production else 200)


@pytest.mark.parametrize("mode", ["prod", "", "simulation,production"])
def test_a_mode_that_is_none_is_refused_with_the_name_of_its_setting(mode):
    for attempt in (
        lambda: app_of(mode),
        lambda: HTTPEnvServer(ToolEnvironment, ToolAction, ProbeObservation).register_routes(FastAPI(), mode=mode),
    ):
        with pytest.raises(UsageError, match="OPENENV_MODE"):
            attempt()
    if mode:
        with pytest.raises(UsageError, match="OPENENV_MODE"):
            ServerSettings.read({"OPENENV_MODE": mode})


def test_routes_of_the_apps_owner_are_the_owners_matter():
    app = app_of()

    @app.get("/mine")
    def mine() -> str:
        return "mine"

    @app.post("/reset")
    def other_reset() -> str:
        return "of the owner"

    with TestClient(app) as client:
        assert client.get("/mine").json() == "mine"
        # Where ours is not there, that of the owner is.
        assert client.post("/reset").json() == "of the owner"


def test_a_page_elsewhere_is_kept_out_in_every_mode():
    authenticator = Authenticator(ServerSettings.read({}, mode="production"), time.monotonic)
    with pytest.raises(OpenEnvError):
        authenticator.admit(RequestHead("POST", "/mcp", {b"origin": b"http://evil.example", b"host": b"here"}))
