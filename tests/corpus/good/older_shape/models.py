"""The models."""

from pydantic import Field

from openenv.core.env_server.types import Action, Observation


class MazeAction(Action):
    """Goes somewhere."""

    message: str = Field(..., description="Where to")


class MazeObservation(Observation):
    """Sees where it is."""

    echoed_message: str = Field(default="", description="Where it went")
    message_length: int = Field(default=0, description="How long that was")
