"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...llm import LLMClient
    from ...rubrics import LLMJudge, Rubric

__all__ = [
    "LLMClient",
    "LLMJudge",
    "Rubric",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "LLMClient": "openenv.llm",
        "LLMJudge": "openenv.rubrics",
        "Rubric": "openenv.rubrics",
    },
)
