"""An abacus that tools work on."""

from typing import Any, Optional
from uuid import uuid4

from fastmcp import FastMCP

try:
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.types import Action, Observation, State
except ImportError:
    from core.env_server.mcp_environment import MCPEnvironment
    from core.env_server.types import Action, Observation, State


class AbacusEnvironment(MCPEnvironment):
    """Tools that compute, one that fails, two that keep a state, and one for each mode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("abacus_env")
        beads: list[int] = []

        @mcp.tool
        def add(a: float, b: float) -> float:
            """
            Add two numbers.

            Args:
                a: The first.
                b: The second.

            Returns:
                Their sum
            """
            return a + b

        @mcp.tool
        def divide(a: float, b: float) -> float:
            """Divide one number by another."""
            return a / b

        @mcp.tool
        async def push(bead: int) -> dict[str, Any]:
            """Push a bead; tells all beads and their sum."""
            beads.append(bead)
            return {"beads": list(beads), "sum": sum(beads)}

        @mcp.tool()
        def beads_as_text() -> str:
            """All beads, one word each."""
            return " ".join(map(str, beads))

        super().__init__(mcp)

        @self.tool(mode="production")
        def settle(amount: float) -> str:
            """Settle an amount for real."""
            return f"settled {amount}"

        @self.tool(mode="simulation")
        def rehearse(amount: float) -> str:
            """Settle an amount for play."""
            return f"rehearsed {amount}"

        self._beads = beads
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> Observation:
        self._beads.clear()
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Observation(done=False, reward=0.0, metadata={"status": "ready", "seed": seed})

    def _step_impl(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        return Observation(
            done=False,
            reward=0.0,
            metadata={"error": f"Unknown action type: {type(action).__name__}. Use tools."},
        )

    def step(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    @property
    def state(self) -> State:
        return self._state
