"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]


class MyAction(Action):
    """An attempt."""

    code: str = Field(max_length=20_000, description="A Python program; its output is the answer")


class MyObservation(Observation):
    """The task, and the result of the program. `Observation` already has `reward` and `done`."""

    task: str = Field(description="The task for the program")
    output: str = Field(default="", description="Output of the program, with errors")
    output_cut: bool = Field(default=False, description="The output was truncated")
    exit_code: int | None = Field(default=None, description="0 for success; null if it was stopped or did not run")
    timed_out: bool = Field(default=False, description="It exceeded the time limit and was stopped")
    attempts_left: int = Field(ge=0, description="Number of remaining attempts")
    terminated: bool = Field(default=False, description="The task is solved")
    truncated: bool = Field(default=False, description="No attempt remains")


class MyState(State):
    """Data for the trainer that the agent does not see."""

    answer: str = Field(default="", description="The expected output; empty before the first reset")
