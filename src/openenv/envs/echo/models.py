"""What goes into the echo environment and what comes out."""

from __future__ import annotations

from pydantic import Field

from openenv.types import Action, Observation

__all__ = ["EchoAction", "EchoObservation"]


class EchoAction(Action):
    """Says something."""

    message: str = Field(description="Text to be repeated")


class EchoObservation(Observation):
    """Hears it again."""

    echoed_message: str = Field(description="The text of the action; after a reset, a word of welcome")
    message_length: int = Field(default=0, ge=0, description="Characters in the text of the action")
