"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]


class MyAction(Action):
    """One push."""

    push: Literal["left", "right"] = Field(description="Direction of the push")


class MyObservation(Observation):
    """Positions and velocities of cart and pole. `Observation` already has `reward` and `done`."""

    cart_position: float = Field(description="Distance from the middle of the track, which ends at 2.4")
    cart_velocity: float = Field(description="Velocity of the cart, positive to the right")
    pole_angle: float = Field(description="Angle from upright in radians; beyond 0.21 the pole has fallen")
    pole_velocity: float = Field(description="Angular velocity of the pole, in radians per second")
    terminated: bool = Field(default=False, description="The pole fell, or the cart left the track")
    truncated: bool = Field(default=False, description="The episode reached 500 steps")


class MyState(State):
    """Data for the trainer that is not in the observations."""

    env_id: str = Field(description="Id of the environment in Gymnasium")
    seed: int | None = Field(default=None, description="The seed of the last reset")
