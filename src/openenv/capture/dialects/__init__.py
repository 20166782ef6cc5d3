"""The APIs that agents speak, each converted to chat completions and back."""

from .anthropic import AnthropicDialect
from .base import Dialect, EngineAnswer, EventWriter, ModelCall, RequestRefused
from .chat import ChatDialect
from .google import GoogleDialect
from .responses import ResponsesDialect

__all__ = ["DIALECTS", "Dialect", "EngineAnswer", "EventWriter", "ModelCall", "RequestRefused", "detect"]

DIALECTS: dict[str, Dialect] = {
    each.name: each for each in (ChatDialect(), ResponsesDialect(), AnthropicDialect(), GoogleDialect())
}
_PATHS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic"}


def detect(path: str) -> Dialect | None:
    """The dialect of a path; None for any other path, which is refused.

    Args:
        path: Path of the request, with or without a version and other parts before the API's own.
    """
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return DIALECTS["google"]
    return next((DIALECTS[name] for end, name in _PATHS.items() if path.endswith(end)), None)
