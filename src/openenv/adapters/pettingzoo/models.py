"""What goes into an environment of many agents, and what comes out. Agents are fields, typed by their spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from gymnasium import Space
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # typing's own cannot be read by pydantic before Python 3.12

from ...types import Action, Observation, State
from ..gymnasium.codec import SpaceCodec
from ..gymnasium.description import KEYWORD, describe

__all__ = ["PettingZooAction", "PettingZooObservation", "PettingZooState", "by_agent"]

# As a function: here, the keys are known only when it is called.
_typed_dict: Any = TypedDict


class PettingZooAction(Action):
    """What `step` takes: an action of each agent in `to_act`; subclasses type them by the spaces."""

    # How another process gets a class that no module has (`openenv.execution.process`).
    __reference__: ClassVar[tuple[Any, ...]]

    actions: Any


class PettingZooObservation(Observation):
    """What `reset` and `step` return. `reward` is the sum of `rewards`; `done` is true once no agent lives.

    All that is told by agent is there for the agents that are to act now, and for those whose last step this was.
    """

    observations: Any = Field(description="What each agent sees")
    rewards: dict[str, float] = Field(default_factory=dict, description="What each agent got since it was told last")
    terminations: dict[str, bool] = Field(default_factory=dict, description="Who reached an end of its own")
    truncations: dict[str, bool] = Field(default_factory=dict, description="Who was cut short")
    infos: dict[str, dict[str, Any]] = Field(default_factory=dict, description="What else the environment tells each")
    action_masks: dict[str, list[int]] = Field(
        default_factory=dict, description="Of agents whose environment has masks: 1 for each action that is allowed"
    )
    agents: list[str] = Field(default_factory=list, description="Who lives")
    to_act: list[str] = Field(default_factory=list, description="Whose actions the next step takes, all of them")
    terminated: bool = Field(default=False, description="The episode is over, and no agent was cut short")
    truncated: bool = Field(default=False, description="The episode is over, and some agent was cut short")


class PettingZooState(State):
    """What is known about the episode beside its observations."""

    module: str = Field(description="The module that has the environment")
    seed: int | None = Field(default=None, description="The seed given to the last reset")
    agents: list[str] = Field(default_factory=list, description="Who lives")
    to_act: list[str] = Field(default_factory=list, description="Whose actions the next step takes")


def by_agent(name: str, spaces: Mapping[str, Space[Any]], codecs: Mapping[str, SpaceCodec]) -> Any:
    """A type of JSON objects with a member of its space for each agent, or for some of them."""
    fields = {}
    for agent, space in spaces.items():
        words = " ".join(str(space).split())
        told = Field(description=words, json_schema_extra={KEYWORD: describe(space)})
        fields[agent] = Annotated[codecs[agent].type, told]
    made = _typed_dict(name, fields, total=False)
    with_config(ConfigDict(extra="forbid"))(made)
    return made
