"""What a class of environments tells of itself to a page: also from the process in which its instances are."""

from __future__ import annotations

import contextlib
import inspect
import logging
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec
from pydantic import ConfigDict, Field, create_model
from pydantic_core import to_json

from ..contract import schema_of
from ..environment import metadata_of
from ..execution import describe, profile_of
from ..execution.profile import is_asynchronous
from ..log_once import warn_once
from ..types import EnvironmentMetadata
from .metadata import places_of

__all__ = ["ANY_RESET", "Introduction", "introduce", "introduction_of"]

logger = logging.getLogger("openenv.server")

PANEL = "panel.html"
PANEL_BYTES = 4 * 1024 * 1024

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# What these are where nothing is said of them.
_USUAL: dict[str, Any] = {"seed": int | None, "episode_id": str | None}
# What the endpoints ask of these, whatever the environment takes.
_BOUNDS: dict[str, dict[str, Any]] = {"seed": {"minimum": 0}, "episode_id": {"maxLength": 255}}

ANY_RESET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "seed": {"type": "integer", "minimum": 0, "title": "Seed"},
        "episode_id": {"type": "string", "maxLength": 255, "title": "Episode id"},
    },
    "additionalProperties": True,
}
"""What a reset takes of which nothing is known."""


class Introduction(msgspec.Struct):
    """What is known of it.

    Attributes:
        metadata: The fields of an `EnvironmentMetadata`.
        reset_schema: JSON Schema of the arguments of its reset.
        seedable: Whether one of them is a seed.
        panel: The HTML of its author's panel.
    """

    metadata: dict[str, Any]
    reset_schema: dict[str, Any] = msgspec.field(default_factory=lambda: ANY_RESET)
    seedable: bool = True
    panel: str | None = None


def introduction_of(cls: type[Any]) -> Introduction:
    """What the class alone tells."""
    metadata = metadata_of(cls).model_dump()
    return Introduction(metadata, _reset_schema(cls), profile_of(cls).seedable, _panel(cls))


def introduce(environment: Any, _: None) -> str:
    """The operation: the same of an instance, as JSON."""
    told = introduction_of(type(environment))
    ask = getattr(environment, "get_metadata", None)
    if ask is not None:
        told.metadata = EnvironmentMetadata.model_validate(ask()).model_dump()
    return to_json(msgspec.to_builtins(told), inf_nan_mode="strings", fallback=repr).decode()


def _reset_schema(cls: type[Any]) -> dict[str, Any]:
    """Of the signature: what has no type, or none that a form knows, takes anything."""
    try:
        reset = getattr(cls, "reset_async" if is_asynchronous(cls) else "reset")
        parameters = list(inspect.signature(reset).parameters.values())[1:]
        hints = _hints(reset)
        fields = {f"p{number}": _field(each, hints) for number, each in enumerate(parameters) if each.kind in _NAMED}
        model: Any = create_model("Reset", __config__=ConfigDict(arbitrary_types_allowed=True), **fields)
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: signatures and types bring their own functions
        warn_once(
            logger,
            "the parameters of the reset of %s cannot be read, so that its form takes anything: %s",
            cls.__qualname__,
            describe(error),
        )
        return ANY_RESET
    further = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return {**(schema_of(model) or ANY_RESET), "additionalProperties": further}


def _field(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """A parameter as a field of a model; under its own name it might be one that models must not have."""
    kind = hints.get(parameter.name, _USUAL.get(parameter.name, Any))
    default = ... if parameter.default is parameter.empty else parameter.default
    bounds = _BOUNDS.get(parameter.name, {})
    title = parameter.name.replace("_", " ").capitalize()
    field = Field(default, alias=parameter.name, title=title, json_schema_extra=bounds)
    return (kind if schema_of(kind) is not None else Any, field)


def _hints(function: Any) -> dict[str, Any]:
    """The types of the parameters, but for those whose names only a type checker has."""
    found: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(function).items():
        alone = SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):
            found |= get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)
    return found


def _panel(cls: type[Any]) -> str | None:
    for file in (place / PANEL for place in places_of(cls)):
        with contextlib.suppress(OSError):  # one that may not be read, or is gone by now
            if file.is_file() and file.stat().st_size <= PANEL_BYTES:
                return file.read_text(encoding="utf-8", errors="replace")
    return None
