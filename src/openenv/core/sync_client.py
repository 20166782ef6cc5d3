"""`openenv.client.SyncEnvClient` under its older name."""

from __future__ import annotations

from ._homes import *

__all__ = [
    "ActT",
    "EnvClient",
    "ObsT",
    "StateT",
    "StepResult",
    "SyncEnvClient",
]

__getattr__, __dir__ = take(__name__, __all__)
