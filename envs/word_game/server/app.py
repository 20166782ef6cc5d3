"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""

from __future__ import annotations

from openenv import create_app

from .word_game_environment import WordGameEnvironment

# Pass the class, not an instance: each session gets a new instance.
app = create_app(WordGameEnvironment, name="word_game")
