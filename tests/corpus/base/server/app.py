"""The app."""

from __future__ import annotations

from openenv.server import create_app

from ..models import MazeAction, MazeObservation
from .maze_environment import MazeEnvironment

app = create_app(MazeEnvironment, MazeAction, MazeObservation, env_name="maze")
