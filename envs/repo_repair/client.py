"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import RepoRepairAction, RepoRepairObservation, RepoRepairState

__all__ = ["RepoRepairEnv"]


class RepoRepairEnv(EnvClient[RepoRepairAction, RepoRepairObservation, RepoRepairState]):
    """Works on one repository at a time.

    Example::

        with RepoRepairEnv(base_url="http://localhost:8000").sync() as env:
            print(env.reset(split="train", index=7).observation.task)
            print(env.step(RepoRepairAction(kind="test")).observation.output)

    In asynchronous code the same calls are awaited.
    """
