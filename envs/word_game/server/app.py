"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv.server import create_app

from ..models import WordGameAction, WordGameObservation, WordGameState
from .word_game_environment import WordGameEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(
    WordGameEnvironment, WordGameAction, WordGameObservation, env_name="word_game", state_cls=WordGameState
)
