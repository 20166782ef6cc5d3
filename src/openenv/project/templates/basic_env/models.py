"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]

HIGHEST = 100
MOST_GUESSES = 10


class MyAction(Action):
    """One guess."""

    guess: int = Field(ge=1, le=HIGHEST, description="The guessed number")


class MyObservation(Observation):
    """The answer to a guess. `Observation` already has `reward` and `done`."""

    hint: Literal["start", "higher", "lower", "found"] = Field(
        description="Whether the number is higher or lower than the guess"
    )
    guesses_left: int = Field(ge=0, le=MOST_GUESSES, description="Number of remaining guesses")
    terminated: bool = Field(default=False, description="The number was found")
    truncated: bool = Field(default=False, description="No guess remains")


class MyState(State):
    """Data for the trainer that the guesser does not see."""

    secret: int = Field(default=0, ge=0, le=HIGHEST, description="The number to be found; 0 before the first reset")
