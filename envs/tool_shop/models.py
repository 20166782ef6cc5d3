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

    task: str = Field(description="In words")
    calls_left: int = Field(default=0, ge=0, description="How many calls remain")


class ToolShopObservation(CallToolObservation):
    """The result of a tool (`result`), or its failure (`error`). `Observation` already has `reward` and `done`."""

    calls_left: int = Field(default=0, ge=0, description="How many calls remain")
    terminated: bool = Field(default=False, description="The agent said that it is done")
    truncated: bool = Field(default=False, description="No call remains")


class ToolShopState(State):
    """Data for the trainer that the agent does not see."""

    split: str = Field(default="", description="Of the task")
    index: int | None = Field(default=None, description="Of the task in its split")
    kind: str = Field(default="", description="Of the task")
    wanted: list[str] = Field(default_factory=list, description="The changes to the database that the customer wants")
    made: list[str] = Field(default_factory=list, description="The changes so far")
    score: float | None = Field(default=None, description="What that was worth at the end")
