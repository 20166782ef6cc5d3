"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import take

if TYPE_CHECKING:
    from .._homes import *

__all__ = [
    "LLMClient",
    "LLMJudge",
    "Rubric",
]

__getattr__, __dir__ = take(__name__, __all__)
