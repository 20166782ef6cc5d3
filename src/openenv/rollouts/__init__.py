"""Rollouts: episodes with a model in them, recorded to the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .engine import RolloutRun, rollouts
    from .groups import RolloutProgress, TaskSource, drop_equal
    from .journal import RolloutJournal, read_rollouts, rollout_files
    from .model import Completion, Model, ModelRequest, Sampling
    from .options import RolloutBudget
    from .records import (
        ChatMessage,
        PrefixBreak,
        Rollout,
        RolloutFailure,
        RolloutGroup,
        RolloutOutcome,
        RolloutTask,
        StepRecord,
        TokenUsage,
        Turn,
        context_of,
    )
    from .tokens import PrefixBroken, TokenHistory, TrainingSegment, segments

_NAMES = {
    "engine": ("RolloutRun", "rollouts"),
    "groups": ("RolloutProgress", "TaskSource", "drop_equal"),
    "journal": ("RolloutJournal", "read_rollouts", "rollout_files"),
    "model": ("Completion", "Model", "ModelRequest", "Sampling"),
    "options": ("RolloutBudget",),
    "records": (
        "ChatMessage",
        "PrefixBreak",
        "Rollout",
        "RolloutFailure",
        "RolloutGroup",
        "RolloutOutcome",
        "RolloutTask",
        "StepRecord",
        "TokenUsage",
        "Turn",
        "context_of",
    ),
    "tokens": ("PrefixBroken", "TokenHistory", "TrainingSegment", "segments"),
}

__all__ = [
    "ChatMessage",
    "Completion",
    "Model",
    "ModelRequest",
    "PrefixBreak",
    "PrefixBroken",
    "Rollout",
    "RolloutBudget",
    "RolloutFailure",
    "RolloutGroup",
    "RolloutJournal",
    "RolloutOutcome",
    "RolloutProgress",
    "RolloutRun",
    "RolloutTask",
    "Sampling",
    "StepRecord",
    "TaskSource",
    "TokenHistory",
    "TokenUsage",
    "TrainingSegment",
    "Turn",
    "context_of",
    "drop_equal",
    "read_rollouts",
    "rollout_files",
    "rollouts",
    "segments",
]

__getattr__, __dir__ = lazy(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
)
