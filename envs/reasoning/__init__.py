"""Reasoning tasks: more than a hundred kinds of questions, generated from seeds, with verified answers."""

from .client import ReasoningEnv
from .models import ReasoningAction, ReasoningObservation, ReasoningState

__all__ = ["ReasoningAction", "ReasoningEnv", "ReasoningObservation", "ReasoningState"]
