"""`openenv.environment` and `openenv.environment` under their older name."""

from __future__ import annotations

from ...environment import Environment, Message, ModelTokenizer, TaskProvider, Transform
from ...types import Action, ActT, EnvironmentMetadata, Observation, ObsT, State, StateT

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
