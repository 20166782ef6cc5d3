"""A word game: find the hidden word by guesses. The game marks each letter of a guess."""

from .client import WordGameEnv
from .models import Row, WordGameAction, WordGameObservation, WordGameState

__all__ = ["Row", "WordGameAction", "WordGameEnv", "WordGameObservation", "WordGameState"]
