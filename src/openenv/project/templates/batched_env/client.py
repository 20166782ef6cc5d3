"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient
from openenv.types import State

from .models import MyAction, MyObservation

__all__ = ["MyEnv"]


class MyEnv(EnvClient[MyAction, MyObservation, State]):
    """Plays one episode at a time. `openenv.BatchedEnvClient` plays all episodes of a batch together.

    Example::

        with MyEnv(base_url="http://localhost:8000").sync() as env:
            result = env.reset(seed=7)
            way = result.observation.goal - result.observation.position
            result = env.step(MyAction(push=way / 2))
            print(result.observation.position, result.reward, result.done)

    In asynchronous code the same calls are awaited. `MyEnv(env=MyEnvironment)` plays without a server.
    """
