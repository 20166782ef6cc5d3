"""Typed reinforcement-learning environments, served to trainers by the thousand.

Names are imported when they are first used: `import openenv` alone costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import EnvClient, GenericAction, GenericEnvClient, SyncEnvClient, VectorEnvClient
    from .environment import Environment, Transform
    from .errors import OpenEnvError
    from .rewards import reward_mask
    from .types import Action, Observation, State, StepResult

__version__ = "1.0.0"

__all__ = [
    "Action",
    "EnvClient",
    "Environment",
    "GenericAction",
    "GenericEnvClient",
    "Observation",
    "OpenEnvError",
    "State",
    "StepResult",
    "SyncEnvClient",
    "Transform",
    "VectorEnvClient",
    "__version__",
    "core",
    "reward_mask",
]

_HOMES = {
    "Action": "types",
    "EnvClient": "client",
    "Environment": "environment",
    "GenericAction": "client",
    "GenericEnvClient": "client",
    "Observation": "types",
    "OpenEnvError": "errors",
    "State": "types",
    "StepResult": "types",
    "SyncEnvClient": "client",
    "Transform": "environment",
    "VectorEnvClient": "client",
    "reward_mask": "rewards",
}


def __getattr__(name: str) -> Any:
    if name == "core":
        return importlib.import_module(".core", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
