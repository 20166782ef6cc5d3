"""A duel of three rounds."""

from .client import DuelEnv
from .models import DuelAction, DuelObservation

__all__ = ["DuelAction", "DuelEnv", "DuelObservation"]
