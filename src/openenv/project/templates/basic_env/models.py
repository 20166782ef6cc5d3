"""What goes into the environment and what comes out.

Clients and servers share these classes. Each field's type, bounds and description are what a trainer is told
(`GET /schema`), what the form of the web page is made of, and what every action is checked against.
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

    guess: int = Field(ge=1, le=HIGHEST, description="The number that it may be")


class MyObservation(Observation):
    """What the guesser is told. `reward` and `done` are there already: every `Observation` has them."""

    hint: Literal["start", "higher", "lower", "found"] = Field(description="Where the number is, seen from the guess")
    guesses_left: int = Field(ge=0, le=MOST_GUESSES, description="How many guesses remain")
    terminated: bool = Field(default=False, description="The game came to its end: the number was found")
    truncated: bool = Field(default=False, description="The game was cut short: no guess remains")


class MyState(State):
    """What a trainer may look at, and the guesser is not shown."""

    secret: int = Field(default=0, ge=0, le=HIGHEST, description="The number to be found; 0 before the first reset")
