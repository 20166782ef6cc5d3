"""`openenv.client.EnvClient` under its older name."""

from __future__ import annotations

from ..client import EnvClient
from ..types import StepResult

__all__ = [
    "EnvClient",
    "StepResult",
]
