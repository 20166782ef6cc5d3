"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv.server import create_app

from ..models import GridworldAction, GridworldObservation, GridworldState
from .gridworld_environment import GridworldEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(
    GridworldEnvironment, GridworldAction, GridworldObservation, env_name="gridworld", state_cls=GridworldState
)
