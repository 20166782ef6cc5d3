"""`openenv.environment` and `openenv.interfaces` under their older name."""

from __future__ import annotations

from ...environment import Environment, Transform
from ...interfaces import Message, ModelTokenizer, TaskProvider
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
