"""Typed reinforcement-learning environments, served to trainers by the thousand.

Names are imported when they are first used: `import openenv` alone costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._imports import lazy as _lazy

if TYPE_CHECKING:
    from . import cli as cli
    from . import core as core
    from .auto import AutoAction, AutoEnv
    from .client import EnvClient, GenericAction, GenericEnvClient, SyncEnvClient, VectorEnvClient
    from .environment import Environment, Transform
    from .errors import OpenEnvError
    from .types import Action, Observation, State, StepResult, reward_mask

__version__ = "1.0.0"

__all__ = [
    "Action",
    "AutoAction",
    "AutoEnv",
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
    "cli",
    "core",
    "reward_mask",
]

_HOMES = {
    "Action": "openenv.types",
    "AutoAction": "openenv.auto",
    "AutoEnv": "openenv.auto",
    "EnvClient": "openenv.client",
    "Environment": "openenv.environment",
    "GenericAction": "openenv.client",
    "GenericEnvClient": "openenv.client",
    "Observation": "openenv.types",
    "OpenEnvError": "openenv.errors",
    "State": "openenv.types",
    "StepResult": "openenv.types",
    "SyncEnvClient": "openenv.client",
    "Transform": "openenv.environment",
    "VectorEnvClient": "openenv.client",
    "cli": "openenv.cli",
    "core": "openenv.core",
    "reward_mask": "openenv.types",
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
