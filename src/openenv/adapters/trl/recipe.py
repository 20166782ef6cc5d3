"""All that the episodes of one factory have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...client import EnvClient
from .answer import Render
from .reward import Reward
from .tool import Tool

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How to make an episode. Picklable, as long as its parts are.

    Attributes:
        name: The class's name, under which trainers log its reward.
        client_type: The client class.
        arguments: What each client is made with.
        tools: What the model may call.
        reward: How an episode is scored; None leaves that to the trainer.
        render: What the model gets to read of an observation; None for `answer_of`.
        columns: Columns of the dataset that the environment's reset gets; None for all.
        patience_s: Seconds for which a reset is tried again while there is no session to be had.
    """

    name: str
    client_type: type[EnvClient[Any, Any, Any]]
    arguments: Mapping[str, Any]
    tools: tuple[Tool, ...]
    reward: Reward | None
    render: Render | None
    columns: tuple[str, ...] | None
    patience_s: float

    def client(self) -> EnvClient[Any, Any, Any]:
        """A client of its own for one episode; it connects with its first call."""
        return self.client_type(**self.arguments)
