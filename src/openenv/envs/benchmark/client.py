"""The typed client of the benchmark environment."""

from __future__ import annotations

from openenv.client import EnvClient
from openenv.envs.benchmark.models import BenchmarkAction, BenchmarkObservation
from openenv.types import State

__all__ = ["BenchmarkEnv"]


class BenchmarkEnv(EnvClient[BenchmarkAction, BenchmarkObservation, State]):
    """Drives one benchmark session.

    Example::

        async with BenchmarkEnv(base_url="http://localhost:8000") as env:
            await env.reset()
            result = await env.step(BenchmarkAction(wait_seconds=1.0))
            assert result.reward == 0.5
    """
