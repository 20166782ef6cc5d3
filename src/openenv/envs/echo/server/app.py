"""The app that serves the echo environment, for `openenv serve` and any ASGI server."""

from __future__ import annotations

from openenv import create_app
from openenv.envs.echo.server.echo_environment import EchoEnvironment

app = create_app(EchoEnvironment, name="echo")
