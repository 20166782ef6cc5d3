"""The observations and state of the environment. Its action is a tool call: `openenv.mcp.CallToolAction`.

The JSON Schema (`GET /schema`) and the web page show the type, bounds and description of each field.
"""

from __future__ import annotations

from pydantic import Field

from openenv.mcp import CallToolObservation
from openenv.types import Observation, State

__all__ = ["ToolShopObservation", "ToolShopState", "ToolShopTask"]


class ToolShopTask(Observation):
    """The task: the observation after a reset."""

    task: str = Field(description="The request of a customer, as text for the agent")
    calls_left: int = Field(default=0, ge=0, description="Number of remaining calls")


class ToolShopObservation(CallToolObservation):
    """The result of a tool (`result`), or its failure (`error`). `Observation` already has `reward` and `done`."""

    calls_left: int = Field(default=0, ge=0, description="Number of remaining calls")
    terminated: bool = Field(default=False, description="The agent called `finish`")
    truncated: bool = Field(default=False, description="No call remains, and the last one was not `finish`")


class ToolShopState(State):
    """Data for the trainer that the agent does not see."""

    split: str = Field(default="", description="Split of the task")
    index: int | None = Field(default=None, description="Index of the task in its split")
    kind: str = Field(default="", description="Kind of the task")
    wanted: list[str] = Field(default_factory=list, description="The facts that the customer wants to become true")
    made: list[str] = Field(default_factory=list, description="The facts that became true so far")
    score: float | None = Field(default=None, description="The reward of `finish`; 0 without it, None before the end")
