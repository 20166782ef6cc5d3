"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "Gate",
    "Rubric",
    "RubricDict",
    "RubricList",
    "Sequential",
    "WeightedSum",
]

__getattr__, __dir__ = take(__name__, __all__)
