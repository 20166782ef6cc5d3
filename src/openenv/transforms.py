"""Transforms that are made of other transforms, or of none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .environment import Transform
from .types import ObsT

__all__ = ["CompositeTransform", "NullTransform"]


class CompositeTransform(Transform[ObsT]):
    """Applies transforms one after the other, each to what the one before it returned.

    Args:
        transforms: In the order of their application; none of them changes nothing.
    """

    def __init__(self, transforms: Iterable[Transform[ObsT]]):
        self.transforms: list[Transform[ObsT]] = list(transforms)

    def __call__(self, observation: ObsT) -> ObsT:
        for transform in self.transforms:
            observation = transform(observation)
        return observation


class NullTransform(Transform[Any]):
    """Changes nothing."""

    def __call__(self, observation: Any) -> Any:
        return observation
