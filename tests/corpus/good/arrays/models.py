"""What goes into the maze and what comes out."""

from __future__ import annotations

from array import array
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, WithJsonSchema

from openenv.types import Action, Observation


def _floats(value: Any) -> Any:
    return array("d", value) if isinstance(value, list) else value


# An array, as numpy has them, which travels as a list.
Board = Annotated[
    array,
    PlainValidator(_floats, json_schema_input_type=list[float]),
    PlainSerializer(lambda board: board.tolist(), return_type=list[float]),
    WithJsonSchema({"type": "array", "items": {"type": "number"}}),
]


class Mood(Enum):
    """How it goes there."""

    GLAD = "glad"
    SAD = "sad"


class Point(BaseModel):
    """A place, and what it was reached from."""

    at: int
    before: Point | None = None


class MazeAction(Action):
    """Goes somewhere."""

    move: Literal["left", "right", "stay"]
    speed: Annotated[int, Field(ge=1, le=3)] = 1
    path: list[Point] = Field(default_factory=list, max_length=3)
    mood: Mood | None = None


class MazeObservation(Observation):
    """Sees where it is."""

    position: int
    goal: int
    steps_left: int = Field(ge=0)
    board: Board
    cells: dict[str, list[float]]
    nearest: Point | None
    last: tuple[int, str]
