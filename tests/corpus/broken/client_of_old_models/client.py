"""The typed client."""

from __future__ import annotations

from openenv.client import EnvClient
from openenv.types import Action, State

from .models import MazeObservation


class MazeAction(Action):
    """Goes somewhere."""

    direction: int


class MazeEnv(EnvClient[MazeAction, MazeObservation, State]):
    """Plays in the maze."""
