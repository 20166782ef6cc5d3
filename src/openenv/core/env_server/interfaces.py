"""`openenv.environment` and `openenv.interfaces` under their older name."""

from __future__ import annotations

from ...environment import Environment, Transform
from ...interfaces import Message, ModelTokenizer, TaskProvider
from ...types import Action, EnvironmentMetadata, Observation, State

__all__ = [
    "Action",
    "Environment",
    "EnvironmentMetadata",
    "Message",
    "ModelTokenizer",
    "Observation",
    "State",
    "TaskProvider",
    "Transform",
]
