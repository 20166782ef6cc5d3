"""An environment of tools."""

from __future__ import annotations

from typing import Any, Literal

from fastmcp import FastMCP

from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment
from openenv.server import create_app
from openenv.types import Observation, State

PRICES = {"tea": 3.0, "cake": 4.5}


class Shop(MCPEnvironment):
    """Sells tea and cake."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("shop")
        self.spent = 0.0

        @mcp.tool
        def price(item: Literal["tea", "cake"]) -> float:
            """What an item costs."""
            return PRICES[item]

        @mcp.tool
        def buy(item: str, count: int = 1) -> dict[str, float]:
            """Buys something."""
            self.spent += PRICES[item] * count
            return {"spent": self.spent}

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.spent = 0.0
        return Observation(done=False)

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(done=True)

    @property
    def state(self) -> State:
        return State(spent=self.spent)


app = create_app(Shop, CallToolAction, CallToolObservation, env_name="shop", max_concurrent_envs=16)
