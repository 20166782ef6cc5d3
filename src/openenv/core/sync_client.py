"""`openenv.client.SyncEnvClient` under its older name."""

from __future__ import annotations

from ..client import EnvClient, SyncEnvClient
from ..types import ActT, ObsT, StateT, StepResult

__all__ = [
    "ActT",
    "EnvClient",
    "ObsT",
    "StateT",
    "StepResult",
    "SyncEnvClient",
]
