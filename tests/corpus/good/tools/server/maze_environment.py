"""The maze, whose moves are tools."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP

from openenv.mcp import MCPEnvironment
from openenv.types import Action, Observation, State


class MazeEnvironment(MCPEnvironment):
    """A line with tools to walk on it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("maze")
        self._state = State()
        self._position = 0

        @mcp.tool
        def walk(steps: int, direction: str = "right") -> int:
            """Walks so many steps."""
            self._position += steps if direction == "right" else -steps
            return self._position

        @mcp.tool
        def look() -> dict[str, int]:
            """Says where one is."""
            return {"position": self._position}

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self._state = State(episode_id=episode_id or uuid4().hex)
        self._position = 0
        return Observation()

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self._state.step_count += 1
        return super().step(action, timeout_s, **kwargs)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return self._state
