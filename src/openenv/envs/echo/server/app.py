"""The app that serves the echo environment, for `openenv serve` and any ASGI server."""

from __future__ import annotations

from openenv.envs.echo.models import EchoAction, EchoObservation
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.server import create_app

app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo")
