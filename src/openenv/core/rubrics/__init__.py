"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...rubrics import (
        ExponentialDiscountingTrajectoryRubric,
        Gate,
        LLMJudge,
        Rubric,
        RubricDict,
        RubricList,
        Sequential,
        TrajectoryRubric,
        WeightedSum,
    )
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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ExponentialDiscountingTrajectoryRubric": "openenv.rubrics",
        "Gate": "openenv.rubrics",
        "LLMJudge": "openenv.rubrics",
        "Rubric": "openenv.rubrics",
        "RubricDict": "openenv.rubrics",
        "RubricList": "openenv.rubrics",
        "Sequential": "openenv.rubrics",
        "TrajectoryRubric": "openenv.rubrics",
        "WeightedSum": "openenv.rubrics",
        "base": "openenv.core.rubrics.base",
        "containers": "openenv.core.rubrics.containers",
        "llm_judge": "openenv.core.rubrics.llm_judge",
        "trajectory": "openenv.core.rubrics.trajectory",
    },
)
