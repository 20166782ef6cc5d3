"""What comes out of the environment. What goes in is the call of a tool: `openenv.mcp.CallToolAction`.

Each field's type, bounds and description are what a trainer is told (`GET /schema`), and the web page shows.
"""

from __future__ import annotations

from pydantic import Field

from openenv.mcp import CallToolObservation
from openenv.types import Observation, State

__all__ = ["ToolShopObservation", "ToolShopState", "ToolShopTask"]


class ToolShopTask(Observation):
    """What the agent is asked to do: the observation after a reset."""

    task: str = Field(description="In words")
    calls_left: int = Field(default=0, ge=0, description="How many calls remain")


class ToolShopObservation(CallToolObservation):
    """What a tool gave (`result`), or why it gave nothing (`error`). `reward` and `done` are there already."""

    calls_left: int = Field(default=0, ge=0, description="How many calls remain")
    terminated: bool = Field(default=False, description="The agent said that it is done")
    truncated: bool = Field(default=False, description="The episode was cut short: no call remains")


class ToolShopState(State):
    """What a trainer may look at, and the agent is not shown."""

    split: str = Field(default="", description="Of the task")
    index: int | None = Field(default=None, description="Of the task in its split")
    kind: str = Field(default="", description="Of the task")
    wanted: list[str] = Field(default_factory=list, description="What shall be different in the database at the end")
    made: list[str] = Field(default_factory=list, description="What is different in it now")
    score: float | None = Field(default=None, description="What that was worth at the end")
