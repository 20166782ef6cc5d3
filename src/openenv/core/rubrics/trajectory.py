"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Rubric",
    "TrajectoryRubric",
]

__getattr__, __dir__ = take(__name__, __all__)
