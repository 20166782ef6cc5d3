"""The typed client."""

from __future__ import annotations

from openenv.client import EnvClient
from openenv.types import State

from .models import MazeAction, MazeObservation


class MazeEnv(EnvClient[MazeAction, MazeObservation, State]):
    """Plays in the maze."""
