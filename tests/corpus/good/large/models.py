"""What goes into the maze and what comes out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openenv.types import Action, Observation


class MazeAction(Action):
    """Goes somewhere."""

    move: Literal["left", "right", "stay"]


class MazeObservation(Observation):
    """Sees where it is."""

    position: int
    goal: int
    steps_left: int = Field(ge=0)
    pixels: list[int]
