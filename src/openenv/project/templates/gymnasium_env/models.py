"""What goes into the environment and what comes out.

Clients and servers share these classes. Each field's type, bounds and description are what a trainer is told
(`GET /schema`), what the form of the web page is made of, and what every action is checked against.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openenv.types import Action, Observation, State

__all__ = ["MyAction", "MyObservation", "MyState"]


class MyAction(Action):
    """One push."""

    push: Literal["left", "right"] = Field(description="Which way the cart is pushed")


class MyObservation(Observation):
    """Where cart and pole are. `reward` and `done` are there already: every `Observation` has them."""

    cart_position: float = Field(description="From the middle of the track; beyond 2.4 is its end")
    cart_velocity: float = Field(description="Positive to the right")
    pole_angle: float = Field(description="From upright, in radians; beyond 0.21 it has fallen")
    pole_velocity: float = Field(description="Of the pole's tip, in radians per second")
    terminated: bool = Field(default=False, description="The pole fell, or the cart left the track")
    truncated: bool = Field(default=False, description="The time was up: 500 steps")


class MyState(State):
    """What a trainer may look at beside the observations."""

    env_id: str = Field(description="The name by which Gymnasium knows the environment")
    seed: int | None = Field(default=None, description="The seed of the last reset")
