"""The app."""

from __future__ import annotations

from openenv import Chat, TagAnswer, create_app

from .maze_environment import MazeEnvironment


class ChatMaze(MazeEnvironment):
    """A line with a goal on it, for a language model."""

    chat = Chat(
        system="Go to the goal. End with <move>left</move>, <move>right</move> or <move>stay</move>.",
        observation="You are at {position}, the goal is at {goal}, {steps_left} steps are left.",
        answer=TagAnswer(tag="move"),
    )


app = create_app(ChatMaze, name="maze")
