"""`openenv.rubrics` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...rubrics import Rubric

__all__ = [
    "Rubric",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.rubrics"))
