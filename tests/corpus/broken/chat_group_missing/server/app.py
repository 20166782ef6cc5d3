"""The app."""

from __future__ import annotations

from openenv import Chat, RegexAnswer, create_app

from .maze_environment import MazeEnvironment


class ChatMaze(MazeEnvironment):
    """A line with a goal on it, for a language model."""

    chat = Chat(system="Say where.", answer=RegexAnswer(pattern="(?P<where>left|right|stay)"))


app = create_app(ChatMaze, name="maze")
