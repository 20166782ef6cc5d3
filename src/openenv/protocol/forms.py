"""Observations and actions as plain dicts, for programs with their own routes and pages.

A step does not use these: the server writes bytes (`encoding`) and reads them (`server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from ..types import ActT
from .encoding import encode_observation


def serialize_observation(observation: Any) -> dict[str, Any]:
    """The v1 payload of an observation: `{"observation": {...}, "reward", "done"}`, and `metadata` if not empty.

    Args:
        observation: An `Observation`, or a mapping or object with the same fields.

    Raises:
        StepFailed: It cannot be encoded as JSON; the message names the field.
    """
    payload: dict[str, Any] = from_json(encode_observation(observation))
    return payload


def read_action(values: Mapping[str, Any], cls: type[ActT]) -> ActT:
    """The action with these values.

    Raises:
        ValidationError: They are invalid for this class (pydantic's error, with each fault and its location).
    """
    return TypeAdapter(cls).validate_python(dict(values))


def read_form(values: Mapping[str, Any], cls: type[ActT]) -> ActT:
    """The action of a form with fields that were typed as text.

    A text that the field accepts is unchanged. Other texts are read as JSON; for a list or tuple also without the
    brackets: `1, 2, 3`. An empty text for a field that accepts no text means that the field was left out.

    Raises:
        ValidationError: As for `read_action`, for the values as they were typed.
    """
    adapter: TypeAdapter[ActT] = TypeAdapter(cls)
    given = dict(values)
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        refused = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
        typed = {name for name in refused if isinstance(given.get(str(name)), str)}
        if not typed:
            raise
        meant = {name: _meant(value, cls, name) if name in typed else value for name, value in given.items()}
        try:
            return adapter.validate_python({name: value for name, value in meant.items() if value is not _LEFT_OUT})
        except ValidationError:
            raise error from None


_LEFT_OUT = object()


def _meant(text: str, cls: type[Any], name: str) -> Any:
    """The value of a text that its field does not accept; the text itself if it is not JSON."""
    if not text.strip():
        return _LEFT_OUT
    field = getattr(cls, "model_fields", {}).get(name)
    if field is not None and get_origin(field.annotation) in {list, tuple} and text.strip()[0] not in "[{":
        parts = [part.strip() for part in text.split(",")]
        return [_json(part) for part in parts]
    return _json(text)


def _json(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text
