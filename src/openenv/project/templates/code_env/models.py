"""What goes into the environment and what comes out.

Clients and servers share these classes. Each field's type, bounds and description are what a trainer is told
(`GET /schema`), what the form of the web page is made of, and what every action is checked against.
"""

from __future__ import annotations

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]


class MyAction(Action):
    """An attempt."""

    code: str = Field(max_length=20_000, description="A Python program; what it prints is the answer")


class MyObservation(Observation):
    """The task, and what the program did. `reward` and `done` are there already: every `Observation` has them."""

    task: str = Field(description="What the program shall do, in words")
    output: str = Field(default="", description="What it printed, errors included")
    output_cut: bool = Field(default=False, description="It printed more than is kept")
    exit_code: int | None = Field(default=None, description="0 if all went well; null if it was stopped, or not run")
    timed_out: bool = Field(default=False, description="It took too long, and was stopped")
    attempts_left: int = Field(ge=0, description="How many attempts remain")
    terminated: bool = Field(default=False, description="The task is solved")
    truncated: bool = Field(default=False, description="The episode was cut short: no attempt remains")


class MyState(State):
    """What a trainer may look at, and the author of the program is not shown."""

    answer: str = Field(default="", description="What the program should print; empty before the first reset")
