"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv.server import create_app

from ..models import MyAction, MyObservation, MyState
from .my_env_environment import MyEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(MyEnvironment, MyAction, MyObservation, env_name="my_env", state_cls=MyState)
