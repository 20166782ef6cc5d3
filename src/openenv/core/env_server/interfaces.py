"""`openenv.environment` and `openenv.types` under their older name."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "ActT",
    "Action",
    "Environment",
    "EnvironmentMetadata",
    "Message",
    "ModelTokenizer",
    "ObsT",
    "Observation",
    "State",
    "StateT",
    "TaskProvider",
    "Transform",
]

__getattr__, __dir__ = take(__name__, __all__)
