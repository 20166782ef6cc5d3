"""`openenv.client` under its older name."""

from __future__ import annotations

from ._homes import *

__all__ = [
    "EnvClient",
    "GenericAction",
    "GenericEnvClient",
    "StepResult",
]

__getattr__, __dir__ = take(__name__, __all__)
