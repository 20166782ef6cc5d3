"""The typed client of the echo environment."""

from __future__ import annotations

from openenv.client import EnvClient
from openenv.envs.echo.models import EchoAction, EchoObservation
from openenv.types import State

__all__ = ["EchoEnv"]


class EchoEnv(EnvClient[EchoAction, EchoObservation, State]):
    """Drives one echo session.

    Example::

        async with EchoEnv(base_url="http://localhost:8000") as env:
            await env.reset()
            result = await env.step(EchoAction(message="hi"))
            assert result.observation.echoed_message == "hi"
    """
