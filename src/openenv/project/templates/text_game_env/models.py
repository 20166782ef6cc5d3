"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]


class MyAction(Action):
    """A command of the player."""

    command: str = Field(max_length=200, description="One command, such as `go kitchen`; `look` says where you are")


class MyObservation(Observation):
    """The answer to a command. `Observation` already has `reward` and `done`."""

    text: str = Field(description="What happens and what the player sees")
    commands: list[str] = Field(default_factory=list, description="The commands that are possible here")
    terminated: bool = Field(default=False, description="The chest is open")
    truncated: bool = Field(default=False, description="No turn remains")


class MyState(State):
    """Data for the trainer that the player does not see."""

    room: str = Field(default="hall", description="The room of the player")
    has_key: bool = Field(default=False, description="Whether the player carries the key")
    key_room: str = Field(default="", description="The room of the key at the start; empty before the first reset")
    chest_room: str = Field(default="", description="The room of the chest; empty before the first reset")
