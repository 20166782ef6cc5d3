"""`openenv.environment` under its older name."""

from __future__ import annotations

from ...environment import CompositeTransform, NullTransform, Transform
from ...types import Observation

__all__ = [
    "CompositeTransform",
    "NullTransform",
    "Observation",
    "Transform",
]
