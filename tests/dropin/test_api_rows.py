"""The names that others use, row by row: each row of the list has a test that carries its name.

The names themselves are compared in test_public_names.py; here is what they must do.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import json
import pickle
import re
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastmcp import FastMCP
from pydantic import ValidationError
from starlette.testclient import TestClient

from openenv.core import EnvClient, GenericEnvClient, StepResult
from openenv.core.containers.runtime import ContainerProvider, RuntimeProvider, UVProvider
from openenv.core.containers.runtime.providers import DockerSwarmProvider
from openenv.core.env_server import Action, Environment, Observation, State
from openenv.core.env_server.exceptions import ConcurrencyConfigurationError
from openenv.core.env_server.http_server import HTTPEnvServer, create_app, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import ConcurrencyConfig
from openenv.core.llm_client import LLMClient
from openenv.core.mcp_client import MCPToolClient
from openenv.core.rubrics import (
    ExponentialDiscountingTrajectoryRubric,
    Gate,
    LLMJudge,
    Rubric,
    RubricDict,
    RubricList,
    Sequential,
    WeightedSum,
)
from tests.server.wires import served

ROWS: dict[str, str] = {}


def row(text: str) -> Callable[[Any], Any]:
    """Names the row that a test is about."""

    def mark(test: Any) -> Any:
        ROWS[test.__name__] = text
        return test

    return mark


class Move(Action):
    by: int = 1


class Place(Observation):
    at: int = 0


class Walk(Environment):
    """As many wrote theirs: no `super().__init__()`, a step that takes the action only, a state that is a dict."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, start: int = 0):
        self.at = self.start = start
        self.threads = {threading.get_ident()}

    def reset(self) -> Place:
        self.threads.add(threading.get_ident())
        self.at = self.start
        return Place(at=self.at)

    def step(self, action: Move) -> Place:
        self.threads.add(threading.get_ident())
        self.at += action.by
        return Place(at=self.at, reward=self._apply_rubric(action, None), metadata={"threads": len(self.threads)})

    @property
    def state(self) -> dict[str, Any]:
        return {"episode_id": "walk", "step_count": self.at, "start": self.start}


class WalkClient(EnvClient[Move, Place, State]):
    """With a parse of its own, as existing clients have."""

    def _step_payload(self, action: Move) -> dict[str, Any]:
        return {"by": action.by}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Place]:
        place = Place(**payload["observation"], reward=payload.get("reward"), done=payload.get("done", False))
        return StepResult(observation=place, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


class Derived(EnvClient[Move, Place, State]):
    """With nothing of its own."""


class Toolbox(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("toolbox")

        @mcp.tool
        def twice(number: int) -> int:
            """Twice a number."""
            return 2 * number

        super().__init__(mcp)

        @self.tool()
        def fail() -> str:
            """Always fails."""
            raise ValueError("no way")

        @self.tool(mode="production")
        def real() -> str:
            """Only in production."""
            return "real"

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"other": type(action).__name__})

    @property
    def state(self) -> State:
        return State(episode_id="tools")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(Walk, Move, Place, "walk", max_concurrent_envs=64)) as address:
        yield re.sub(r"^ws(.*?)(/ws)?$", r"http\1", address)


@row("The distribution is called openenv, its version is 1.0.0 or later, and it accepts the extra core")
def test_distribution() -> None:
    found = importlib.metadata.metadata("openenv")
    assert int(found["Version"].split(".")[0]) >= 1
    assert "core" in found.get_all("Provides-Extra", [])


@row("Action, Observation, State, StepResult")
def test_action_observation_state_and_step_result() -> None:
    with pytest.raises(ValidationError):
        Move(by=1, dance=True)
    move = Move()
    with pytest.raises(ValidationError):
        move.by = "far"
    assert move.metadata == {}
    assert (Observation().done, Observation().reward, Observation().metadata) == (False, None, {})
    assert [Observation(reward=value).reward for value in (True, 2, 0.5)] == [True, 2, 0.5]
    with pytest.raises(ValidationError):
        Observation(unknown=1)
    assert State(anything=[1]).model_dump() == {"episode_id": None, "step_count": 0, "anything": [1]}
    with pytest.raises(ValidationError):
        State(step_count=-1)

    class Wrapped(Action):
        thing: threading.Event

    assert isinstance(Wrapped(thing=threading.Event()).thing, threading.Event)
    result = StepResult[Place](observation=Place(at=1))
    assert (result.reward, result.done, result.metadata) == (None, False, None)


@row("Environment(transform=None, rubric=None)")
def test_environment(url: str) -> None:
    with WalkClient(base_url=url).sync() as env:
        assert env.reset(prompt="x").observation.at == 0
        result = env.step(Move(by=3))
        assert result.reward == 0.0
        assert result.observation.metadata["threads"] == 1
        assert env.state().start == 0
    walk = Walk()
    assert walk._apply_transform(Place(at=2)).at == 2
    assert walk._reset_rubric() is None
    assert walk.get_metadata().name
    assert walk.render_web(Place()) is None
    assert list(walk.web_actions(Place())) == []
    assert asyncio.run(walk._apply_rubric_async(Move(), Place())) == 0.0
    assert asyncio.run(walk._reset_rubric_async()) is None
    assert (Environment.SUPPORTS_CONCURRENT_SESSIONS, Environment.REQUIRES_SINGLE_THREAD_EXECUTOR) == (False, False)
    walk.close()


@row("create_app, create_fastapi_app")
def test_create_app() -> None:
    with pytest.raises(TypeError, match="instance"):
        create_app(Walk(), Move, Place)
    with pytest.raises(ValueError, match="both"):
        create_app(Walk, Move, Place, None, 2, ConcurrencyConfig(max_concurrent_envs=2))

    class Alone(Walk):
        SUPPORTS_CONCURRENT_SESSIONS = False

    with pytest.raises(ConcurrencyConfigurationError, match="Alone"):
        create_app(Alone, Move, Place, max_concurrent_envs=2)
    named = [
        create_app(Walk, Move, Place, "walk", 3),
        create_fastapi_app(Walk, Move, Place, 3, None, "walk"),
        create_app(functools.partial(Walk, start=0), Move, Place, env_name="walk", max_concurrent_envs=3),
    ]
    for app in named:
        assert isinstance(app, FastAPI)
        with TestClient(app) as client:
            assert client.get("/list_environments").json() == ["walk"]


@row("Returned apps are changed by their users")
def test_apps_are_changed() -> None:
    app = create_app(Walk, Move, Place, "walk", 3)
    app.router.routes[:] = [each for each in app.router.routes if getattr(each, "path", None) not in {"/reset", "/"}]

    @app.post("/reset")
    def own() -> dict[str, bool]:
        return {"own": True}

    @app.middleware("http")
    async def stamp(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-stamp"] = "yes"
        return response

    with TestClient(app) as client:
        answer = client.post("/reset", json={})
        assert (answer.json(), answer.headers["x-stamp"]) == ({"own": True}, "yes")
        assert client.post("/step", json={"action": {"by": 4}}).json()["observation"]["at"] == 4


@row("HTTPEnvServer")
def test_http_env_server() -> None:
    class Mine(HTTPEnvServer):
        def register_routes(self, app: FastAPI, mode: Any = "simulation") -> None:
            super().register_routes(app, mode=mode)
            factory = self._env_factory

            @app.get("/mine")
            def mine() -> Any:
                return {"active": self.active_sessions, "at": factory().at}

    server = Mine(env=Walk, action_cls=Move, observation_cls=Place, max_concurrent_envs=2, env_name="walk")
    app = FastAPI()
    server.register_routes(app, mode="simulation")
    with TestClient(app) as client:
        assert client.get("/mine").json() == {"active": 0, "at": 0}
        with client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "reset"})
            assert socket.receive_json()["type"] == "observation"
            assert server.active_sessions == 1
            status = server.get_capacity_status()
            assert (status.active_sessions, status.max_sessions, status.available_slots) == (1, 2, 1)
    assert server.max_concurrent_envs == 2
    assert server.is_concurrency_safe is True
    assert server.concurrency_config.max_concurrent_envs == 2
    assert server.get_session_info("nobody") is None


@row("EnvClient: constructor, urls, ways to call it")
@pytest.mark.parametrize("client_type", [WalkClient, Derived])
def test_env_client(url: str, client_type: type[EnvClient[Move, Place, State]]) -> None:
    bare = url.removeprefix("http://")
    for address in (url, url + "/", f"ws://{bare}", bare):
        with client_type(address).sync() as env:
            env.reset()
            assert env.step(Move(by=2)).observation == Place(at=2, reward=0.0, metadata={"threads": 1})
            assert env.state().step_count == 2

    async def play() -> int:
        async with client_type(base_url=url, message_timeout_s=30, headers={"x-a": "b"}, mode="simulation") as env:
            await env.reset()
            await env.step(Move(by=2))
            return (await env.state()).step_count

    assert asyncio.run(play()) == 2
    plain = client_type(url, 5.0, 30.0, 10.0, None, None)
    assert plain.reset().observation.at == 0
    plain.close()
    with client_type(url) as entered:
        assert entered.reset().observation.at == 0


@row("EnvClient: from_docker_image, from_env, from_hub are awaitable, sync()-able, and usable in with and async with")
def test_env_client_from_an_image(url: str) -> None:
    class Nearby(ContainerProvider):
        """A container that is there already."""

        stopped = 0

        def start_container(self, image: str, port: Any = None, env_vars: Any = None, **kwargs: Any) -> str:
            assert image == "walk:latest"
            return url

        def stop_container(self) -> None:
            self.stopped += 1

        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
            assert base_url == url

    provider = Nearby()
    with WalkClient.from_docker_image("walk:latest", provider=provider) as env:
        assert env.reset().observation.at == 0
    started = WalkClient.from_docker_image("walk:latest", provider=provider).sync()
    assert started.reset().observation.at == 0
    started.close()

    async def play() -> None:
        async with WalkClient.from_docker_image("walk:latest", provider=provider) as env:
            await env.reset()
        env = await WalkClient.from_docker_image("walk:latest", provider=provider)
        await env.reset()
        await env.close()

    asyncio.run(play())
    assert provider.stopped == 4
    assert callable(WalkClient.from_env)
    assert callable(WalkClient.from_hub)


@row("MCPEnvironment(mcp_server, transform=None): tool(mode), _step_impl, reserved names; the types of tools")
def test_mcp_environment() -> None:
    box = Toolbox()
    box.reset()
    listed = box.step(ListToolsAction())
    assert isinstance(listed, ListToolsObservation)
    assert {tool.name for tool in listed.tools} >= {"twice", "fail"}
    assert all(isinstance(tool, Tool) for tool in listed.tools)
    assert "real" not in {tool.name for tool in listed.tools}
    called = box.step(CallToolAction(tool_name="twice", arguments={"number": 4}))
    assert isinstance(called, CallToolObservation)
    assert (called.tool_name, called.error) == ("twice", None)
    kinds = {
        name: box.step(CallToolAction(tool_name=name, arguments=arguments)).error
        for name, arguments in [("fail", {}), ("nothing", {}), ("twice", {"number": "x"})]
    }
    assert all(isinstance(error, ToolError) for error in kinds.values())
    assert [error.error_type for error in kinds.values()] == [
        ToolErrorType.EXECUTION_ERROR,
        ToolErrorType.TOOL_NOT_FOUND,
        ToolErrorType.INVALID_ARGS,
    ]
    assert box.step(Move()).metadata == {"other": "Move"}
    box.close()

    class Reserved(Toolbox):
        def __init__(self, name: str):
            mcp = FastMCP("reserved")
            mcp.tool(lambda: 1, name=name)
            MCPEnvironment.__init__(self, mcp)

    for name in ("reset", "step", "state", "close"):
        with pytest.raises(ValueError, match=name):
            Reserved(name)


@row("MCPToolClient(base_url=...): list_tools, call_tool, get_tool, has_tool, and reset, step, state")
def test_mcp_tool_client() -> None:
    with served(create_app(Toolbox, CallToolAction, CallToolObservation, "tools", max_concurrent_envs=4)) as address:
        with MCPToolClient(base_url=address).sync() as env:
            env.reset()
            assert {tool.name for tool in env.list_tools()} == {"twice", "fail"}
            assert env.call_tool("twice", number=21) == 42
            assert env.has_tool("twice")
            assert env.get_tool("none") is None
            observation = env.step(CallToolAction(tool_name="twice", arguments={"number": 1})).observation
            assert observation.result["data"] == 2
            assert env.state().episode_id == "tools"
            with pytest.raises(RuntimeError, match="no way"):
                env.call_tool("fail")


class Fixed(Rubric):
    def __init__(self, score: float):
        super().__init__()
        self.score = score
        self.calls = 0

    def forward(self, action: Any, observation: Any) -> float:
        self.calls += 1
        return self.score


class Later(Fixed):
    async def forward(self, action: Any, observation: Any) -> float:
        return self.score


@row("Rubrics: containers, hooks, state, trajectories")
def test_rubrics() -> None:
    class Whole(Rubric):
        def __init__(self) -> None:
            super().__init__()
            self.left = Fixed(0.5)
            self.right = Gate(Fixed(0.5), threshold=0.6)

        def forward(self, action: Any, observation: Any) -> float:
            return self.left(action, observation) + self.right(action, observation)

    whole = Whole()
    heard: list[float] = []
    whole.register_forward_hook(lambda rubric, action, observation, result: heard.append(result))
    whole.register_forward_pre_hook(lambda rubric, action, observation: heard.append(-1))
    assert whole(1, 2) == 0.5
    assert heard == [-1, 0.5]
    assert whole.last_score == 0.5
    assert {name for name, _ in whole.named_rubrics()} >= {"left", "right", "right.rubric"}
    assert whole.get_rubric("right.rubric").last_score == 0.5
    whole.load_state_dict(whole.state_dict())
    whole.reset()

    stopped = Fixed(1.0)
    assert Sequential(Fixed(0.0), stopped)(1, 2) == 0.0
    assert stopped.calls == 0
    assert WeightedSum([Fixed(1.0), Fixed(0.0)], weights=[0.25, 0.75])(1, 2) == 0.25
    with pytest.raises(ValueError, match="1"):
        WeightedSum([Fixed(1.0)], weights=[0.5])
    assert asyncio.run(WeightedSum([Later(1.0), Fixed(0.0)], weights=[0.25, 0.75])(1, 2)) == 0.25
    assert len(RubricList([Fixed(1.0)])) == 1
    assert list(RubricDict({"a": Fixed(1.0)}).keys()) == ["a"]

    class Won(ExponentialDiscountingTrajectoryRubric):
        def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
            return 1.0

    won = Won(gamma=0.5)
    assert [won(n, Place(done=n == 2)) for n in range(3)] == [0.0, 0.0, 1.0]
    assert won.compute_step_rewards() == [0.25, 0.5, 1.0]


@row("LLMJudge(prompt_template, client, *, score_pattern, default_score=0, normalize=True)")
def test_llm_judge() -> None:
    class Model(LLMClient):
        def __init__(self, answer: str):
            super().__init__("http://localhost", None)
            self.answer = answer

        async def complete(self, prompt: str, **kwargs: Any) -> str:
            assert "go" in prompt
            return self.answer

    assert asyncio.run(LLMJudge("{action}?", Model("Score: 0.75"))("go", "x")) == 0.75
    assert (
        asyncio.run(LLMJudge("{action}?", Model("7 of 10"), score_pattern=r"(\d+) of", normalize=False)("go", 1))
        == 7.0
    )


@row("Providers: ContainerProvider, RuntimeProvider, both context managers; UVProvider, DockerSwarmProvider")
def test_providers(tmp_path: Path) -> None:
    log: list[str] = []

    class Box(ContainerProvider):
        def start_container(self, image: str, port: Any = None, env_vars: Any = None, **kwargs: Any) -> str:
            return "http://localhost:1"

        def stop_container(self) -> None:
            log.append("container stopped")

        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
            log.append("container ready")

    class Run(RuntimeProvider):
        def start(self, port: Any = None, env_vars: Any = None, **kwargs: Any) -> str:
            log.append("started")
            return "http://localhost:1"

        def stop(self) -> None:
            log.append("stopped")

        def wait_for_ready(self, timeout_s: float = 30.0) -> None:
            log.append("ready")

    with Run():
        pass
    assert log[0] == "started"
    assert log[-1] == "stopped"
    with Box() as box:
        box.start_container("image")
    assert log[-1] == "container stopped"
    (tmp_path / "pyproject.toml").touch()
    uv = UVProvider(
        project_path=str(tmp_path), app="server.app:app", host="127.0.0.1", reload=False, env_vars={"A": "b"}
    )
    assert isinstance(uv, RuntimeProvider)
    assert issubclass(DockerSwarmProvider, ContainerProvider)
    for provider in ("LocalDockerProvider", "KubernetesProvider"):
        assert issubclass(getattr(importlib.import_module("openenv.providers"), provider), ContainerProvider)


@row("AutoEnv.from_env, from_hub, get_env_class, get_env_info, list_environments; AutoAction likewise")
def test_auto_env(url: str) -> None:
    from openenv import AutoAction, AutoEnv

    names = {
        AutoEnv: ("from_env", "from_hub", "get_env_class", "get_env_info", "list_environments"),
        AutoAction: ("from_env", "from_hub", "get_action_info", "list_actions"),
    }
    for auto, methods in names.items():
        with pytest.raises(TypeError):
            auto()
        assert all(callable(getattr(auto, name)) for name in methods)
    assert "echo" in AutoEnv.list_environments()
    assert issubclass(AutoEnv.get_env_class("echo"), EnvClient)
    assert issubclass(AutoAction.from_env("echo"), Action)
    assert AutoEnv.get_env_info("echo")
    with pytest.raises(ValueError, match="no-such-thing-at-all"):
        AutoEnv.get_env_class("no-such-thing-at-all")


@row("openenv.yaml: the peer's keys; ours adds client, environment, execution, limits")
def test_openenv_yaml(tmp_path: Path) -> None:
    from openenv.project.manifest import Manifest

    path = tmp_path / "openenv.yaml"
    path.write_text(
        "spec_version: 1\nname: walk\nversion: '0.1.0'\ntype: space\nruntime: fastapi\n"
        "app: server.app:app\nport: 8000\n"
        "description: d\naction: Move\nobservation: Place\nvariables:\n  - A\nclient: WalkClient\nenvironment: Walk\n"
        "execution: process\nlimits:\n  max_sessions: 3\n"
    )
    manifest = Manifest.read(tmp_path)
    assert (manifest.name, manifest.app, manifest.port, manifest.action) == ("walk", "server.app:app", 8000, "Move")
    assert (manifest.client, manifest.environment, manifest.execution) == ("WalkClient", "Walk", "process")
    assert manifest.limits == {"max_sessions": 3}


@row("TRL GRPOTrainer(environment_factory=F)")
def test_trl(url: str) -> None:
    from openenv.adapters.trl import environment_factory

    factory = environment_factory(Derived, tools={"move": Move}, reward="sum", base_url=url)
    made = pickle.loads(pickle.dumps(factory))()
    public = {name for name in dir(made) if not name.startswith("_") and callable(getattr(made, name))}
    assert public == {"reset", "get_reward", "move"}
    assert isinstance(made.reset(prompt="x", label=3), str | list | types.NoneType)
    made.move(by=2)
    assert made.get_reward() == 0.0
    assert "by" in made.move.__doc__

    async def build() -> Any:
        return factory()

    inside = asyncio.run(build())
    with ThreadPoolExecutor(2) as pool:
        pool.submit(inside.reset, prompt="y").result(30)
        pool.submit(inside.move, by=1).result(30)


@row("Unsloth, SkyRL, verifiers, NeMo Gym")
def test_other_trainers(url: str) -> None:
    with TestClient(create_app(Walk, Move, Place, "walk", 3)) as client:
        assert "healthy" in client.get("/health").text
        assert set(client.get("/schema").json()) >= {"action", "observation", "state"}

    def play(number: int) -> int:
        env = WalkClient(base_url=url)
        env.reset()
        at = env.step(Move(by=number)).observation.at
        env.close()
        return at

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(play, range(32))) == list(range(32))
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        assert json.loads(json.dumps(env.step({"by": 5}).observation))["at"] == 5
    walk = Walk()
    walk.reset()
    assert walk.step(Move(by=2)).at == 2


@row("Stable-Baselines3 and RLlib take Gymnasium Env / VectorEnv objects")
def test_gymnasium(url: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Walking(gymnasium.Env):
        """All that it takes over a client of ours."""

        observation_space = gymnasium.spaces.Discrete(100)
        action_space = gymnasium.spaces.Discrete(3)

        def __init__(self) -> None:
            self.client = WalkClient(base_url=url).sync()

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
            super().reset(seed=seed)
            return self.client.reset().observation.at, {}

        def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
            result = self.client.step(Move(by=int(action)))
            return result.observation.at, result.reward, result.terminated, result.truncated, {}

        def close(self) -> None:
            self.client.close()

    many = gymnasium.vector.SyncVectorEnv([Walking] * 3)
    many.reset()
    observations, rewards, terminated, truncated, _ = many.step([0, 1, 2])
    many.close()
    assert observations.tolist() == [0, 1, 2]
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert not terminated.any()
    assert not truncated.any()


def test_every_contract_is_named_by_a_test() -> None:
    assert len(ROWS) == len(set(ROWS.values())) == 18
    assert all(globals()[name].__name__ == name for name in ROWS)
