"""The app."""

from __future__ import annotations

from typing import Any

from openenv import create_app

from .maze_environment import MazeEnvironment


class ChatMaze(MazeEnvironment):
    """A line with a goal on it, for a language model."""

    chat: Any = "You are at {position}."


app = create_app(ChatMaze, name="maze")
