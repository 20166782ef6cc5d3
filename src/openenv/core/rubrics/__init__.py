"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from . import base as base
    from . import containers as containers
    from . import llm_judge as llm_judge
    from . import trajectory as trajectory

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Gate",
    "LLMJudge",
    "Rubric",
    "RubricDict",
    "RubricList",
    "Sequential",
    "TrajectoryRubric",
    "WeightedSum",
]

__getattr__, __dir__ = take(__name__, __all__)
