"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import MyAction, MyObservation, MyState

__all__ = ["MyEnv"]


class MyEnv(EnvClient[MyAction, MyObservation, MyState]):
    """Plays one game at a time.

    Example::

        with MyEnv(base_url="http://localhost:8000").sync() as env:
            env.reset(seed=7)
            result = env.step(MyAction(guess=50))
            print(result.observation.hint, result.reward, result.done)

    In asynchronous code the same calls are awaited. `MyEnv(env=MyEnvironment)` plays without a server.
    """
