"""The app."""

from __future__ import annotations

from openenv.mcp import CallToolAction, CallToolObservation
from openenv.server import create_app

from .maze_environment import MazeEnvironment

app = create_app(MazeEnvironment, CallToolAction, CallToolObservation, env_name="maze")
