"""`openenv.types.StepResult` under its older name."""

from __future__ import annotations

from ..types import StepResult

__all__ = [
    "StepResult",
]
