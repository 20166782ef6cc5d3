"""Models of the snippets."""

from openenv.core.env_server.types import Action
from pydantic import Field


class SnippetAction(Action):
    code: str = Field(..., min_length=1, description="Python; what it calls `result` is the answer")
