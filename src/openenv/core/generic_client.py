"""`openenv.client` under its older name."""

from __future__ import annotations

from ..client import EnvClient, GenericAction, GenericEnvClient
from ..types import StepResult

__all__ = [
    "EnvClient",
    "GenericAction",
    "GenericEnvClient",
    "StepResult",
]
