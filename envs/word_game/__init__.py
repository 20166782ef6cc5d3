"""A word game: find the hidden word by guesses, of which each letter is marked."""

from .client import WordGameEnv
from .models import Row, WordGameAction, WordGameObservation, WordGameState

__all__ = ["Row", "WordGameAction", "WordGameEnv", "WordGameObservation", "WordGameState"]
