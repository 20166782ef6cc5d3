"""The action and observation of one episode.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions. For a batch, an array field has one more
axis in front: the episodes.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from openenv import Array
from openenv.types import Action, Observation

__all__ = ["MyAction", "MyObservation"]

Point = Annotated[np.ndarray, Array("float32", (2,), low=-1, high=1)]


class MyAction(Action):
    """One push."""

    push: Point = Field(description="Direction and strength of the push, along x and y")


class MyObservation(Observation):
    """Where the puck and its goal are. `Observation` already has `reward` and `done`."""

    position: Point = Field(description="Position of the puck, x and y")
    goal: Point = Field(description="Position of the goal, x and y")
    terminated: bool = Field(default=False, description="The puck reached its goal")
    truncated: bool = Field(default=False, description="The episode reached 100 steps")
