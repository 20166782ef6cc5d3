"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv import create_app

from .word_game_environment import WordGameEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(WordGameEnvironment, name="word_game")
