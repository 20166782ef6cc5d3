"""Reasoning tasks: more than a hundred kinds of questions, made from seeds, with answers that are verified."""

from .client import ReasoningEnv
from .models import ReasoningAction, ReasoningObservation, ReasoningState

__all__ = ["ReasoningAction", "ReasoningEnv", "ReasoningObservation", "ReasoningState"]
