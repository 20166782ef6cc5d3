"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv.mcp import CallToolAction
from openenv.server import create_app

from ..models import MyObservation, MyState, MyTask
from .my_env_environment import MyEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(
    MyEnvironment,
    CallToolAction,
    MyObservation,
    env_name="my_env",
    state_cls=MyState,
    reset_observation_cls=MyTask,
)
