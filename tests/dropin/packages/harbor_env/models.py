"""Models of the harbor."""

from datetime import datetime, timezone
from enum import Enum
from typing import List, Optional, Union

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Berth(str, Enum):
    NORTH = "north"
    SOUTH = "south"


class HarborAction(Action):
    berth: Berth = Field(..., description="Where the next ship goes")
    length_m: Union[int, float] = Field(default=50, ge=1, le=400)
    wait_s: float = Field(default=0.0, ge=0, le=60)


class HarborObservation(Observation):
    berths: List[Berth] = Field(default_factory=list)
    arrived_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))
    queue: List[int] = Field(default_factory=list)
    score: Optional[float] = None


class HarborState(State):
    tide: float = 0.0
    berthed: List[str] = Field(default_factory=list)
