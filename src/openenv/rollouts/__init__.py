"""Rollouts: episodes with a model in them, recorded to the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .chat_view import ChatCall, ChatView
    from .endpoint_model import ModelPrice
    from .engine import RolloutRun, rollouts
    from .export import DatasetKind, export_rollouts
    from .groups import RolloutBudget, RolloutProgress, TaskSource, drop_equal
    from .journal import RolloutJournal, read_rollouts, rollout_files
    from .model import Completion, Model, ModelRequest, Sampling
    from .offline_models import FunctionModel, RandomModel
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
    from .transformers_model import TransformersModel
    from .vendor_models import AnthropicModel, OpenAIModel, ResponsesModel, create_model

_NAMES = {
    "chat_view": (
        "ChatCall",
        "ChatView",
    ),
    "endpoint_model": ("ModelPrice",),
    "transformers_model": ("TransformersModel",),
    "vendor_models": ("AnthropicModel", "OpenAIModel", "ResponsesModel", "create_model"),
    "engine": ("RolloutRun", "rollouts"),
    "export": ("DatasetKind", "export_rollouts"),
    "offline_models": ("FunctionModel", "RandomModel"),
    "groups": ("RolloutBudget", "RolloutProgress", "TaskSource", "drop_equal"),
    "journal": ("RolloutJournal", "read_rollouts", "rollout_files"),
    "model": ("Completion", "Model", "ModelRequest", "Sampling"),
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
    "AnthropicModel",
    "ChatCall",
    "ChatMessage",
    "ChatView",
    "Completion",
    "DatasetKind",
    "FunctionModel",
    "Model",
    "ModelPrice",
    "ModelRequest",
    "OpenAIModel",
    "PrefixBreak",
    "PrefixBroken",
    "RandomModel",
    "ResponsesModel",
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
    "TransformersModel",
    "Turn",
    "context_of",
    "create_model",
    "drop_equal",
    "export_rollouts",
    "read_rollouts",
    "rollout_files",
    "rollouts",
    "segments",
]

__getattr__, __dir__ = lazy(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
)
