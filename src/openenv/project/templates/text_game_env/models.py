"""What goes into the environment and what comes out.

Clients and servers share these classes. Each field's type, bounds and description are what a trainer is told
(`GET /schema`), what the form of the web page is made of, and what every action is checked against.
"""

from __future__ import annotations

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]


class MyAction(Action):
    """What the player says."""

    command: str = Field(max_length=200, description="One command, such as `go kitchen`; `look` says where you are")


class MyObservation(Observation):
    """What the player is told. `reward` and `done` are there already: every `Observation` has them."""

    text: str = Field(description="What happened, or what there is to see")
    commands: list[str] = Field(default_factory=list, description="The commands that do something here")
    terminated: bool = Field(default=False, description="The story came to its end: the chest is open")
    truncated: bool = Field(default=False, description="The story was cut short: no turn remains")


class MyState(State):
    """What a trainer may look at, and the player is not shown."""

    room: str = Field(default="hall", description="Where the player is")
    has_key: bool = Field(default=False, description="Whether the player carries the key")
    key_room: str = Field(default="", description="Where the key was put; empty before the first reset")
    chest_room: str = Field(default="", description="Where the chest stands; empty before the first reset")
