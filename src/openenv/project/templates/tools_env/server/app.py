"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv import create_app
from openenv.mcp import CallToolAction

from ..models import MyObservation
from .my_env_environment import MyEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(MyEnvironment, action=CallToolAction, observation=MyObservation, name="my_env")
