"""The app."""

from __future__ import annotations

from openenv.server import create_app

from ..models import MazeAction, MazeObservation
from .maze_environment import MazeEnvironment

TABLE = tuple(range(100))


def make() -> MazeEnvironment:
    """A maze that knows the table."""
    return MazeEnvironment(TABLE)


app = create_app(make, MazeAction, MazeObservation, env_name="maze")
