"""`openenv.client.SyncEnvClient` under its older name."""

from __future__ import annotations

from ..client import SyncEnvClient
from ..types import StepResult

__all__ = [
    "StepResult",
    "SyncEnvClient",
]
