"""Tools that code calls as functions (CodeAct)."""

from typing import Any, Optional

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State

GOAL = 42


class SnippetEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("snippet_env")
        shelf: dict[str, float] = {}

        @mcp.tool
        def put(name: str, value: float) -> float:
            """Put a number on the shelf."""
            shelf[name] = value
            return value

        @mcp.tool
        def get(name: str) -> float:
            """A number from the shelf."""
            return shelf[name]

        super().__init__(mcp)

        @self.tool()
        def double(value: float) -> float:
            """Twice a number."""
            return 2 * value

        assert self.supports_code_mode
        self._shelf = shelf
        self._state = State(step_count=0)

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> Observation:
        self._shelf.clear()
        self._state = State(episode_id=episode_id, step_count=0)
        return Observation(done=False, reward=0.0, metadata={"tools": sorted(self.get_callables())})

    def _step_impl(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        seen = self.execute_code(action.code)
        solved = seen.metadata.get("result") == GOAL
        return Observation(done=solved, reward=1.0 if solved else 0.0, metadata=seen.metadata)

    @property
    def state(self) -> State:
        return self._state
