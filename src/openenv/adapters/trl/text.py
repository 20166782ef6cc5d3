"""What a model gets to read of an observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from ...errors import StepFailed

__all__ = ["text_of"]

# Fields that are told apart from what there is to read.
_BESIDE = frozenset({"reward", "done", "metadata", "truncated", "terminated"})
# Fields whose text, where there is one, is written to be read.
_WORDS = ("text", "message", "observation", "content", "output", "prompt", "response")


def text_of(observation: Any) -> str:
    """An observation as text: a field such as `text` or `message`, an only text, or all of it as JSON.

    Reward, done and metadata are no part of it.

    Returns:
        The empty text for an observation that holds nothing else.

    Raises:
        StepFailed: It holds a value that JSON cannot say.
    """
    if isinstance(observation, str):
        return observation
    fields = _fields(observation)
    if fields is None:
        return _json(observation)
    for name in _WORDS:
        if isinstance(fields.get(name), str) and fields[name]:
            return str(fields[name])
    if len(fields) == 1:
        (only,) = fields.values()
        if isinstance(only, str):
            return only
    return _json(fields) if fields else ""


def _fields(observation: Any) -> dict[str, Any] | None:
    if isinstance(observation, BaseModel):
        fields = {**observation.__dict__, **(observation.__pydantic_extra__ or {})}
    elif isinstance(observation, Mapping):
        fields = dict(observation)
    else:
        return None
    return {name: value for name, value in fields.items() if name not in _BESIDE}


def _json(value: Any) -> str:
    try:
        return to_json(value, fallback=_as_list, inf_nan_mode="constants", bytes_mode="base64").decode()
    except ValueError as error:
        raise StepFailed(
            f"the observation cannot be shown to a model ({error}): give environment_factory render="
        ) from error


def _as_list(value: Any) -> Any:
    """Arrays and tensors, which have this method in common, and numpy's numbers."""
    return value.tolist()
