"""What a tool call brings back to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ConnectionLost
from .text import text_of

__all__ = ["Render", "answer_of", "refusal_of"]

# From an observation to text, to content blocks, or to None for nothing.
Render = Callable[[Any], str | list[dict[str, Any]] | None]

_TRANSPORT = "transport_error"


def refusal_of(observation: Any) -> str | None:
    """What a model is told of the failure that a tool of an MCP environment reports as data; None if it did not fail.

    Raises:
        ConnectionLost: The tool could not be reached: nobody's fault but the infrastructure's.
    """
    error = _called(observation).get("error")
    if not error:
        return None
    kind, message = (_part(error, name) for name in ("error_type", "message"))
    kind = str(getattr(kind, "value", kind))
    if kind == _TRANSPORT:
        raise ConnectionLost(f"the tool could not be reached: {message}")
    return f"{kind}: {message}"


def answer_of(observation: Any) -> str:
    """An observation for a model to read: the result of a tool of an MCP environment, or `text_of` it."""
    called = _called(observation)
    if "result" not in called:
        return text_of(observation)
    result = called["result"]
    data = _part(result, "data")
    if data is not None:
        return text_of(data)
    blocks = _part(result, "content")
    if isinstance(blocks, list) and all(_part(block, "type") == "text" for block in blocks):
        return "\n".join(str(_part(block, "text")) for block in blocks)
    return "" if result is None else text_of(result)


def _called(observation: Any) -> Mapping[str, Any]:
    """The fields of the observation of a tool call; none for any other."""
    fields = observation if isinstance(observation, Mapping) else getattr(observation, "__dict__", {})
    return fields if {"tool_name", "result"} <= fields.keys() else {}


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
