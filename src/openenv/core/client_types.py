"""`openenv.types.StepResult` under its older name."""

from __future__ import annotations

from ..types import ObsT, StateT, StepResult

__all__ = [
    "ObsT",
    "StateT",
    "StepResult",
]
