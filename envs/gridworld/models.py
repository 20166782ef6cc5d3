"""The action, observation and state of the environment.

Client and server share these classes. The JSON Schema (`GET /schema`), the form of the web page and the validation of
actions use the type, bounds and description of each field.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = [
    "LARGEST",
    "MOVES",
    "SMALLEST",
    "GridworldAction",
    "GridworldObservation",
    "GridworldState",
    "Kind",
    "Move",
]

SMALLEST, LARGEST = 4, 16

Kind = Literal["open", "lava", "door"]
"""`open`: walls; `lava`: and lava; `door`: and a door between start and goal, with its key on the near side."""

Move = Literal["up", "down", "left", "right"]
MOVES: tuple[Move, ...] = ("up", "down", "left", "right")


class GridworldAction(Action):
    """One step in one direction."""

    move: Move = Field(description="Direction; a wall, or a locked door without the key, stops the walker")


class GridworldObservation(Observation):
    """The whole level. `Observation` already has `reward` and `done`."""

    rows: list[str] = Field(
        description="The level from above, one string per row: @ the walker, G the goal, # a wall, ~ lava, "
        "k the key, D the locked door, / the open one, . nothing"
    )
    position: tuple[int, int] = Field(description="Row and column of the walker, from 0 at the top left")
    goal: tuple[int, int] = Field(description="Row and column of the goal")
    has_key: bool = Field(default=False, description="Whether the walker carries the key")
    steps_left: int = Field(default=0, ge=0, description="Number of remaining steps")
    terminated: bool = Field(default=False, description="The walker reached the goal, or stepped into lava")
    truncated: bool = Field(
        default=False, description="No step remains, and the walker has not reached the goal or lava"
    )


class GridworldState(State):
    """Data for the trainer that the walker does not see."""

    task: str | None = Field(default=None, description="Id of the level, such as `train/12`; None without a split")
    kind: Kind = Field(default="door", description="Kind of the level")
    size: int = Field(default=8, description="Number of cells per side")
    optimal_steps: int = Field(default=0, description="Number of steps of the shortest path from the start")
    optimal_return: float = Field(default=0.0, description="The maximum return of an episode in this level")
    return_so_far: float = Field(default=0.0, description="The return of this episode so far")
