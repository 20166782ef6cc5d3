"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""

from __future__ import annotations

from openenv import create_app

from .my_env_environment import MyEnvironment

# Pass the class, not an instance: the server makes an instance for each batch of episodes.
app = create_app(MyEnvironment, name="my_env")
