"""Action and observation of the echo environment."""

from __future__ import annotations

from pydantic import Field

from openenv.types import Action, Observation

__all__ = ["EchoAction", "EchoObservation"]


class EchoAction(Action):
    """Says something."""

    message: str = Field(description="Text to repeat")


class EchoObservation(Observation):
    """The repeated message."""

    echoed_message: str = Field(description="The text of the action; after a reset, a welcome")
    message_length: int = Field(default=0, ge=0, description="Number of characters in the text of the action")
