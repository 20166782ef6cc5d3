"""An environment whose actions are tools."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastmcp import FastMCP
from fastmcp.utilities.types import Image

from openenv.images import RenderedImage
from openenv.mcp.environment import MCPEnvironment
from openenv.types import Observation, State


class Desk(MCPEnvironment):
    """A desk with three tools."""

    def __init__(self) -> None:
        desk: FastMCP[Any] = FastMCP("desk")

        @desk.tool
        def add(a: int, b: int = 2) -> int:
            """Adds two numbers."""
            return a + b

        @desk.tool
        def look() -> Image:
            """Looks."""
            return Image(data=RenderedImage.of(np.zeros((10, 12, 3), np.uint8)).data, format="png")

        @desk.tool
        def fail() -> str:
            """Fails."""
            raise ValueError("no luck")

        super().__init__(desk)

    def reset(self, **kwargs: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Any, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()
