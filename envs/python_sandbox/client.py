"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import PythonSandboxAction, PythonSandboxObservation, PythonSandboxState

__all__ = ["PythonSandboxEnv"]


class PythonSandboxEnv(EnvClient[PythonSandboxAction, PythonSandboxObservation, PythonSandboxState]):
    """Works on one task at a time.

    Example::

        with PythonSandboxEnv(base_url="http://localhost:8000").sync() as env:
            print(env.reset(split="train", index=7).observation.task)
            result = env.step(PythonSandboxAction(code="sum(range(10))"))
            print(result.observation.value)

    In asynchronous code the same calls are awaited.
    """
