"""`openenv.transforms` under its older name."""

from __future__ import annotations

from ...environment import Transform
from ...transforms import CompositeTransform, NullTransform
from ...types import Observation

__all__ = [
    "CompositeTransform",
    "NullTransform",
    "Observation",
    "Transform",
]
