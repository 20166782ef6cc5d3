"""The app."""

from __future__ import annotations

from openenv import Chat, create_app

from .maze_environment import MazeEnvironment


class ChatMaze(MazeEnvironment):
    """A line with a goal on it, for a language model."""

    chat = Chat(observation="{position} of {length}")


app = create_app(ChatMaze, name="maze")
