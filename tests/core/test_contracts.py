"""What existing environments, apps and servers do, and what must come of it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.testclient import TestClient

from openenv.core import EnvClient, StepResult
from openenv.core.env_server import HTTPEnvServer, create_app, create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig, State
from openenv.errors import ConcurrencyConfigurationError, StepFailed, UsageError
from openenv.server.server import DEFAULT_MAX_SESSIONS
from openenv.settings import ServerSettings

from ..server.wires import WIRES
from .odd_environments import ENVIRONMENTS, FACTORIES, Count, Counted, Counting

SETTINGS = ServerSettings.read({"OPENENV_API_KEYS": "none"})


def app_of(environment: Any = Counting, **options: Any) -> FastAPI:
    return create_app(environment, Count, Counted, env_name="counting", settings=SETTINGS, **options)


class CountingEnv(EnvClient[Count, Counted, State]): ...


def told_over_websocket(client: TestClient, *messages: dict[str, Any]) -> list[Any]:
    with client.websocket_connect("/ws") as socket:
        replies = []
        for message in messages:
            socket.send_json(message)
            replies.append(socket.receive_json())
        return replies


RESET = {"type": "reset", "data": {"seed": 1, "episode_id": "e", "unforeseen": [1]}}
STEP = {"type": "step", "data": {"by": 2}}
STATE = {"type": "state"}


# Environments


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda cls: cls.__name__)
class TestEnvironments:
    def test_over_websocket(self, environment):
        with TestClient(app_of(environment)) as client:
            reset, step, second, state = told_over_websocket(client, RESET, STEP, STEP, STATE)
        assert reset["data"]["observation"]["total"] == 0
        assert [reply["data"]["observation"]["total"] for reply in (step, second)] == [2, 4]
        assert [reply["data"]["reward"] for reply in (step, second)] == [1.0, 2.0]
        assert (state["data"]["episode_id"], state["data"]["step_count"]) == ("one", 2)

    def test_over_http(self, environment):
        with TestClient(app_of(environment)) as client:
            assert client.post("/reset", json=RESET["data"]).json()["observation"]["total"] == 0
            body = {"action": {"by": 3}, "timeout_s": 20, "unforeseen": 1}
            assert client.post("/step", json=body).json()["observation"]["total"] == 3
            assert client.get("/state").json()["step_count"] == 0
            assert client.get("/health").json() == {"status": "healthy"}
            assert client.get("/metadata").json()["name"]
            assert "by" in client.get("/schema").json()["action"]["properties"]

    async def test_by_a_client(self, environment):
        async with CountingEnv(app=app_of(environment)) as env:
            result = await env.reset(seed=1) if environment.__name__ == "FullSignatures" else await env.reset()
            assert isinstance(result, StepResult)
            assert isinstance(result.observation, Counted)
            result = await env.step(Count(by=5))
            assert (result.observation.total, result.reward, result.done) == (5, 1.0, False)
            assert (await env.step(Count(by=500))).done
            state = await env.state()
            assert (state.step_count, state.episode_id) == (2, "one")


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())
def test_a_factory_makes_environments(factory):
    with TestClient(app_of(factory)) as client:
        _, step = told_over_websocket(client, RESET, STEP)
        assert step["data"]["observation"]["total"] == 2
        assert client.post("/reset").status_code == 200


class Tallied(Counting):
    """Counts its instances."""

    made = 0

    def __init__(self):
        type(self).made += 1
        super().__init__()


@pytest.mark.parametrize(
    "way", [lambda cls: cls, lambda cls: lambda: cls(), functools.partial], ids=["class", "f", "p"]
)
def test_nothing_is_made_before_it_is_used(way):
    Tallied.made = 0
    with TestClient(app_of(way(Tallied))) as client:
        server = client.app.state.openenv
        assert [server.max_concurrent_envs, server.active_sessions, server.is_concurrency_safe] == [1, 0, False]
        client.get("/schema")
        client.get("/health")
        assert Tallied.made == 0
        told_over_websocket(client, RESET, STEP)
        assert Tallied.made == 1


class Threaded(Counting):
    """Tells on which thread each of its methods ran."""

    threads: list[tuple[str, int]] = []
    closed = threading.Event()

    def __init__(self):
        self.note("init")
        super().__init__()

    def note(self, method: str) -> None:
        self.threads.append((method, threading.get_ident()))

    def reset(self):
        self.note("reset")
        return super().reset()

    def step(self, action):
        self.note("step")
        return super().step(action)

    def close(self):
        self.note("close")
        self.closed.set()


def test_one_session_is_one_thread():
    Threaded.threads.clear()
    Threaded.closed.clear()
    with TestClient(app_of(Threaded)) as client:
        told_over_websocket(client, RESET, STEP, STEP)
        assert Threaded.closed.wait(20)
    assert [method for method, _ in Threaded.threads] == ["init", "reset", "step", "step", "close"]
    assert len({thread for _, thread in Threaded.threads}) == 1
    assert Threaded.threads[0][1] != threading.get_ident()


def test_what_an_environment_raises_is_its_own_and_the_session_lives_on():
    class Faulty(Counting):
        def step(self, action):
            if action.by < 0:
                raise ValueError("not backwards")
            return super().step(action)

    with TestClient(app_of(Faulty)) as client:
        bad = {"type": "step", "data": {"by": -1}}
        _, error, step = told_over_websocket(client, RESET, bad, STEP)
        assert (error["type"], error["data"]["code"]) == ("error", "EXECUTION_ERROR")
        assert "not backwards" in error["data"]["message"]
        assert step["data"]["observation"]["total"] == 2


async def test_a_factory_that_makes_no_environment_says_what_it_made():
    with pytest.raises(Exception, match="has no reset and step"):
        async with CountingEnv(app=app_of(lambda: 5)) as env:
            await env.reset()


async def test_an_environment_that_gives_nothing_is_told():
    class Silent(Counting):
        def step(self, action):
            return None

    async with CountingEnv(app=app_of(Silent)) as env:
        await env.reset()
        with pytest.raises(StepFailed, match="None"):
            await env.step(Count())


# create_app and create_fastapi_app


def test_the_positions_of_the_arguments_differ():
    class Own(State):
        mark: int = 0

    both = (Counting, Count, Counted)
    one = create_app(*both, "name", 1, None, None, "Custom", False, True, None, Own)
    two = create_fastapi_app(*both, 1, None, "name", Own)
    for app in (one, two):
        server = app.state.openenv
        assert (server.env_name, server.max_concurrent_envs, server.state_cls) == ("name", 1, Own)
    configured = create_fastapi_app(*both, None, ConcurrencyConfig(max_concurrent_envs=1, session_timeout=9.0))
    assert configured.state.openenv.concurrency_config.session_timeout == 9.0


@pytest.mark.parametrize("make", [create_app, create_fastapi_app])
def test_what_cannot_be_served_is_refused_at_once(make):
    class Sharing(Counting):
        SUPPORTS_CONCURRENT_SESSIONS = True

    with pytest.raises(TypeError, match="instance of Counting.*pass the class"):
        make(Counting(), Count, Counted)
    with pytest.raises(UsageError, match=r"Count is not an environment: it has no reset"):
        make(Count, Count, Counted)
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"max_concurrent_envs is {limit}: it must be at least 1"):
            make(Sharing, Count, Counted, max_concurrent_envs=limit)
    config = ConcurrencyConfig(max_concurrent_envs=2)
    with pytest.raises(ValueError, match="not both"):
        make(Sharing, Count, Counted, max_concurrent_envs=2, concurrency_config=config)
    with pytest.raises(ConcurrencyConfigurationError, match="Counting"):
        make(Counting, Count, Counted, max_concurrent_envs=2)
    assert make(Sharing, Count, Counted, concurrency_config=config).state.openenv.max_concurrent_envs == 2
    assert make(Sharing, Count, Counted).state.openenv.max_concurrent_envs == DEFAULT_MAX_SESSIONS


@pytest.mark.parametrize("make", [create_app, create_fastapi_app])
def test_production_hides_control(make, monkeypatch):
    monkeypatch.setenv("OPENENV_API_KEYS", "none")
    with TestClient(make(Counting, Count, Counted, mode="production")) as client:
        assert client.post("/reset").status_code == 404
        assert client.get("/health").status_code == 200
        (observation,) = told_over_websocket(client, RESET)
        assert observation["type"] == "observation"
    with pytest.raises((RuntimeError, ValueError), match="neither"):
        make(Counting, Count, Counted, mode="neither")


def test_what_a_reset_returns_has_a_schema_of_its_own():
    class First(Counted):
        rules: str = ""

    with TestClient(app_of(reset_observation_cls=First)) as client:
        schema = client.get("/schema").json()
        assert "rules" in schema["reset_observation"]["properties"]
        assert "rules" not in schema["observation"]["properties"]


# Apps that are changed by their users


@pytest.fixture(params=["asgi", "stock", "fast"])
def wire(request: pytest.FixtureRequest) -> Any:
    return WIRES[request.param]


def without(app: FastAPI, path: str) -> None:
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", None) != path]


def test_a_route_is_replaced_by_path():
    app = app_of()
    for path in ("/reset", "/health", "/schema"):
        without(app, path)

    @app.post("/reset")
    async def reset() -> dict[str, str]:
        return {"mine": "reset"}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy", "mine": "health"}

    with TestClient(app) as client:
        assert client.post("/reset").json() == {"mine": "reset"}
        assert client.get("/health").json()["mine"] == "health"
        assert client.get("/schema").status_code == 404
        assert client.post("/step", json={"action": {}}).status_code == 200
        assert "/schema" not in client.get("/openapi.json").json()["paths"]


def test_a_route_is_deleted_in_place():
    app = app_of()
    for route in [route for route in app.routes if getattr(route, "path", "") == "/state"]:
        app.routes.remove(route)
    with TestClient(app) as client:
        assert client.get("/state").status_code == 404
        assert client.get("/health").status_code == 200


def test_a_websocket_endpoint_is_replaced(wire):
    app = app_of()
    without(app, "/ws")

    @app.websocket("/ws")
    async def own(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_json({"mine": await socket.receive_json()})
        await socket.close()

    with wire(app) as connect:
        socket = connect()
        assert socket.ask({"type": "reset"}) == {"mine": {"type": "reset"}}
        socket.close()


def test_routes_and_middleware_are_added(wire):
    app = app_of()
    seen: list[str] = []

    @app.get("/extra")
    def extra() -> str:
        return "mine"

    @app.middleware("http")
    async def note(request: Any, call_next: Any) -> Any:
        seen.append(request.url.path)
        return await call_next(request)

    with wire(app) as connect:
        socket = connect()
        assert socket.ask(RESET)["type"] == "observation"
        assert socket.ask(STEP)["data"]["observation"]["total"] == 2
        socket.close()
    with TestClient(app) as client:
        assert client.get("/extra").json() == "mine"
        assert client.get("/extra").status_code == 200
    assert "/extra" in seen


class Turning:
    """Middleware as ASGI has it, which turns clients away at the door."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4000})
        else:
            await self._app(scope, receive, send)


@pytest.mark.parametrize("name", ["stock", "fast"])
def test_middleware_before_the_websocket_is_not_bypassed(name):
    app = app_of()
    app.add_middleware(Turning)
    with WIRES[name](app) as connect, pytest.raises(Exception, match="403|rejected"):
        connect()


def test_an_app_is_mounted_in_another():
    outer = FastAPI()
    outer.mount("/envs/counting", app_of())
    with TestClient(outer) as client:
        assert client.get("/envs/counting/health").status_code == 200
        assert client.post("/envs/counting/step", json={"action": {"by": 4}}).json()["observation"]["total"] == 4
        with client.websocket_connect("/envs/counting/ws") as socket:
            socket.send_json(STEP)
            assert socket.receive_json()["data"]["observation"]["total"] == 2


# Servers that are subclassed


class OldServer(HTTPEnvServer):
    """Calls its base as it was before there were modes."""

    def register_routes(self, app: FastAPI) -> None:
        super().register_routes(app)

        @app.get("/mine")
        def mine() -> int:
            return self.active_sessions


class NewServer(HTTPEnvServer):
    def register_routes(self, app: FastAPI, mode: Any = None) -> None:
        super().register_routes(app, mode=mode)

        @app.get("/mine")
        def mine() -> int:
            return self.active_sessions


@pytest.mark.parametrize("cls", [OldServer, NewServer])
def test_a_subclass_adds_routes(cls, wire):
    app = FastAPI()
    server = cls(env=Counting, action_cls=Count, observation_cls=Counted)
    server.register_routes(app)
    with wire(app) as connect:
        socket = connect()
        assert socket.ask(RESET)["type"] == "observation"
        socket.close()


def test_the_routes_of_a_subclass_answer():
    app = FastAPI()
    OldServer(Counting, Count, Counted).register_routes(app)
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        socket.send_json(RESET)
        socket.receive_json()
        assert client.get("/mine").json() == 1


def test_a_subclass_makes_environments_itself():
    class Own(HTTPEnvServer):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            inner = self._env_factory
            self._env_factory = lambda: self.tuned(inner())

        def tuned(self, environment: Any) -> Any:
            environment.step = lambda action: Counted(note="tuned")
            return environment

    app = FastAPI()
    server = Own(Counting, Count, Counted)
    server.register_routes(app)
    with TestClient(app) as client:
        _, step = told_over_websocket(client, RESET, STEP)
        assert step["data"]["observation"]["note"] == "tuned"
        assert isinstance(server._env_factory(), Counting)
        assert server.env_factory is server._env_factory


def test_a_factory_cannot_be_replaced_where_processes_know_the_first():
    settings = ServerSettings.read({}, isolation="process")
    server = HTTPEnvServer(Counting, Count, Counted, settings=settings)
    with pytest.raises(RuntimeError, match="constructor"):
        server._env_factory = lambda: Counting()
    assert server._env_factory is Counting


@pytest.fixture
def open_session() -> Iterator[tuple[HTTPEnvServer, Any]]:
    app = app_of()
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        socket.send_json(RESET)
        socket.receive_json()
        yield app.state.openenv, socket


def test_a_server_tells_about_itself_and_its_sessions(open_session):
    server, socket = open_session
    status = server.get_capacity_status()
    assert (status.active_sessions, status.max_sessions, status.available_slots, status.is_at_capacity) == (
        1,
        1,
        0,
        True,
    )
    (session,) = server.manager.sessions
    before = server.get_session_info(session.id)
    assert (before.session_id, before.step_count, before.environment_type) == (session.id, 0, "Counting")
    socket.send_json(STEP)
    socket.receive_json()
    after = server.get_session_info(session.id)
    assert after.created_at == pytest.approx(before.created_at, abs=0.1)
    assert after.last_activity_at >= before.last_activity_at >= before.created_at - 0.1
    assert after.step_count == 1
    assert server.get_session_info("nothing") is None


def test_the_next_session_has_the_place_of_the_last_one():
    with TestClient(app_of()) as client:
        for _ in range(3):
            reset, _ = told_over_websocket(client, RESET, STEP)
            assert reset["type"] == "observation"


async def test_a_client_without_a_loop_of_its_own_and_one_with():
    async with CountingEnv(app=app_of()) as env:
        assert (await env.reset()).observation.total == 0

    def plainly() -> int:
        with CountingEnv(app=app_of()) as env:
            env.reset()
            result: Any = env.step(Count(by=2))
            return int(result.observation.total)

    assert await asyncio.to_thread(plainly) == 2
