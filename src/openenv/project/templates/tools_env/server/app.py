"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""

from __future__ import annotations

from openenv import create_app
from openenv.mcp import CallToolAction

from ..models import MyObservation
from .my_env_environment import MyEnvironment

# Pass the class, not an instance: each session gets a new instance.
app = create_app(MyEnvironment, action=CallToolAction, observation=MyObservation, name="my_env")
