"""What comes out of the environment. What goes in is the call of a tool: `openenv.mcp.CallToolAction`.

Each field's type, bounds and description are what a trainer is told (`GET /schema`), and the web page shows.
"""

from __future__ import annotations

from pydantic import Field

from openenv.mcp import CallToolObservation
from openenv.types import Observation, State

__all__ = ["MyObservation", "MyState", "MyTask"]


class MyTask(Observation):
    """What the agent is asked to do: the observation after a reset."""

    task: str = Field(description="In words")


class MyObservation(CallToolObservation):
    """What a tool gave (`result`), or why it gave nothing (`error`). `reward` and `done` are there already."""

    terminated: bool = Field(default=False, description="The agent checked out")
    truncated: bool = Field(default=False, description="The episode was cut short: no call remains")


class MyState(State):
    """What a trainer may look at, and the agent is not shown."""

    wanted: dict[str, int] = Field(default_factory=dict, description="How many of each thing are on the list")
    basket: dict[str, int] = Field(default_factory=dict, description="How many of each thing were taken")
