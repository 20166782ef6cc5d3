"""Served environments for TRL: `environment_factory` and `rollout_func` for `GRPOTrainer`, `RolloutWorker` for
`AsyncGRPOTrainer`.

Only `RolloutWorker` imports trl, and nothing imports torch before it plays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy
from .episode import TrlEpisode, environment_factory
from .rollouts import rollout_func, rollout_return, task_rows

if TYPE_CHECKING:
    from .worker import RolloutWorker

__all__ = ["RolloutWorker", "TrlEpisode", "environment_factory", "rollout_func", "rollout_return", "task_rows"]

__getattr__, __dir__ = lazy(__name__, {"RolloutWorker": f"{__name__}.worker"})
