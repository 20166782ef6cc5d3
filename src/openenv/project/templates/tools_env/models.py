"""The observations and state of the environment. Its action is a tool call: `openenv.mcp.CallToolAction`.

The JSON Schema (`GET /schema`) and the web page show the type, bounds and description of each field.
"""

from __future__ import annotations

from pydantic import Field

from openenv.mcp import CallToolObservation
from openenv.types import Observation, State

__all__ = ["MyObservation", "MyState", "MyTask"]


class MyTask(Observation):
    """The task: the observation after a reset."""

    task: str = Field(description="In words")


class MyObservation(CallToolObservation):
    """The result of a tool (`result`), or its failure (`error`). `Observation` already has `reward` and `done`."""

    terminated: bool = Field(default=False, description="The agent checked out")
    truncated: bool = Field(default=False, description="No call remains")


class MyState(State):
    """Data for the trainer that the agent does not see."""

    wanted: dict[str, int] = Field(default_factory=dict, description="Number of each item on the list")
    basket: dict[str, int] = Field(default_factory=dict, description="Number of each item in the basket")
