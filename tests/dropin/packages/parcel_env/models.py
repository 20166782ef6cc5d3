"""Models of the parcel environment."""

from __future__ import annotations

from typing import Dict, List, Literal, Optional

from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field, field_validator


class Parcel(BaseModel):
    """What lies on the belt."""

    weight_kg: float = Field(..., gt=0, description="Weight in kilograms")
    labels: List[str] = Field(default_factory=list)


class Van(BaseModel):
    """What parcels are put into."""

    name: str
    limit_kg: float
    parcels: List[Parcel] = Field(default_factory=list)

    @property
    def load_kg(self) -> float:
        return sum(parcel.weight_kg for parcel in self.parcels)


class ParcelAction(Action):
    """Puts a parcel into a van; without one, the parcel that lies on the belt."""

    van: Literal["small", "large"]
    parcel: Optional[Parcel] = None
    note: str = ""

    @field_validator("note")
    @classmethod
    def _no_shouting(cls, note: str) -> str:
        if note.isupper():
            raise ValueError("notes are not shouted")
        return note


class ParcelObservation(Observation):
    """The vans, and the next parcel."""

    vans: Dict[str, Van] = Field(default_factory=dict)
    belt: Optional[Parcel] = None
    message: str = ""


class ParcelState(State):
    """What the client makes of the server's state."""

    depot: str = ""
    delivered_kg: float = 0.0
