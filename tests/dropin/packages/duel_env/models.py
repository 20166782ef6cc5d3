"""Models of the duel."""

from typing import Dict, List, Literal

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class DuelAction(Action):
    move: Literal["strike", "feint", "rest"]


class DuelObservation(Observation):
    round: int = 0
    scores: Dict[str, float] = Field(default_factory=dict)
    credit: List[float] = Field(default_factory=list)
