"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv import create_app

from .my_env_environment import MyEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(MyEnvironment, name="my_env")
