"""A model that plays, and the type of a command that a test runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..model_server import ModelReply

__all__ = ["Command", "guesser"]

Command = Callable[..., tuple[int, str, str]]


def guesser(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Guesses 1, then 2, and so on."""
    guess = 1 + sum(message["role"] == "assistant" for message in messages)
    return ModelReply(calls=[(tools[0]["function"]["name"], json.dumps({"guess": guess}))])
