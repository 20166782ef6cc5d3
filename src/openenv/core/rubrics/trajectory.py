"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...rubrics import ExponentialDiscountingTrajectoryRubric, Rubric, TrajectoryRubric

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Rubric",
    "TrajectoryRubric",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.rubrics"))
