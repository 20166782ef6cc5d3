"""Apps whose frames are compared: served by the released peer and by us, each in its own virtual environment."""

from typing import Any

from fastmcp import FastMCP
from pydantic import BaseModel, Field

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Point(BaseModel):
    x: int = 0
    y: float | None = None


class FrameAction(Action):
    kind: str = "plain"
    amount: int = Field(default=0, ge=0)
    point: Point | None = None


class FrameObservation(Observation):
    text: str = ""
    points: list[Point] = Field(default_factory=list)
    table: dict[str, int | float | None] = Field(default_factory=dict)


class FrameState(State):
    secret: int = 7
    points: list[Point] = Field(default_factory=list)


REWARDS: dict[str, Any] = {"float": 0.5, "int": 2, "true": True, "none": None, "zero": 0.0}


class FrameEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = FrameState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, fail: bool = False, text: str = ""):
        if fail:
            raise RuntimeError("reset fails")
        self._state = FrameState(episode_id=episode_id or "episode", points=[Point(x=1)])
        return FrameObservation(text=text or str(seed))

    def step(self, action: FrameAction, timeout_s: float | None = None, **kwargs: Any):
        if action.kind == "fail":
            raise ValueError("step fails")
        self._state.step_count += 1
        return FrameObservation(
            text=action.kind,
            points=[action.point] if action.point else [],
            table={"one": 1, "half": 0.5, "none": None},
            reward=REWARDS.get(action.kind),
            done=action.kind == "done",
            metadata={"deep": {"list": [1, "two", None]}} if action.kind == "metadata" else {},
        )

    @property
    def state(self) -> FrameState:
        if self._state.step_count > 90:
            raise RuntimeError("state fails")
        return self._state

    def list_splits(self):
        return ["train"]

    def list_tasks(self, split: str):
        return [{"n": 1}, {"n": 2}]

    def num_tasks(self, split: str):
        return 2

    def get_task(self, split: str, index: int):
        return [{"n": 1}, {"n": 2}][index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None):
        return [{"n": 1}, {"n": 2}][start:stop]


class ToolEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("tools")

        @mcp.tool
        def double(number: int) -> int:
            """Twice a number."""
            return 2 * number

        @mcp.tool
        def fail(reason: str = "none") -> str:
            """Always fails."""
            raise ValueError(f"failed: {reason}")

        super().__init__(mcp)
        self._state = State(episode_id="tools", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any):
        return Observation(metadata={"status": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any):
        return Observation()

    @property
    def state(self) -> State:
        return self._state


class NoEnvironment(FrameEnvironment):
    def __init__(self):
        raise OSError("no room for an environment")


app = create_app(
    FrameEnvironment, FrameAction, FrameObservation, "frames", max_concurrent_envs=50, state_cls=FrameState
)
tools = create_app(ToolEnvironment, CallToolAction, CallToolObservation, "tools", max_concurrent_envs=50)
single = create_app(FrameEnvironment, FrameAction, FrameObservation, "single", max_concurrent_envs=1)
broken = create_app(NoEnvironment, FrameAction, FrameObservation, "broken", max_concurrent_envs=50)
