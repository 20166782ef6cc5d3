"""Errors on the wire: facts and data that every codec can encode."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from math import isfinite
from traceback import format_exception_only
from typing import Any, NoReturn

from pydantic_core import to_jsonable_python

from .._exceptions import from_signal
from ..errors import OpenEnvError, StepFailed
from ..telemetry.logs import warn_once

logger = logging.getLogger("openenv.protocol")
KINDS = ("(list_tools)", "(call_tool)", "(action)")
"""The names of the kinds of actions on a server that accepts tool actions and others; no field has such a name."""
# Added to the metadata of the reply to a reset whose seed the environment does not accept.
UNSEEDED = {"seedable": False}
# Most listed faults of one message: a longer list may be ten times as large as the message.
MOST_FAULTS = 100
# Most levels of nested data in an error. Deeper data is replaced by a description.
_MAX_DEPTH = 10
_INT64 = range(-(2**63), 2**63)


def error_facts(error: OpenEnvError) -> dict[str, Any]:
    """The `error` of a reply: facts and, if present, `data`, as values that every codec can encode."""
    facts: dict[str, Any] = _json_safe(error.facts(), _MAX_DEPTH)
    if error.data:
        try:
            facts["data"] = _json_safe(error.data, _MAX_DEPTH)
        except Exception as fault:  # noqa: BLE001 - the edge to foreign code: an object that cannot describe itself
            name = type(error).__qualname__
            warn_once(logger, "the data of a %s cannot be encoded and is omitted: %s", name, type(fault).__qualname__)
            facts["data"] = {}
    return facts


def raise_unsendable(value: Any, error: BaseException) -> NoReturn:
    """Raises `StepFailed` for a value of an environment that raised an exception while it was encoded.

    Raises `error` itself if it is a `StepFailed`, which has the reason, or if a signal raised it.
    """
    if isinstance(error, StepFailed) or from_signal(error):
        try:
            raise error
        finally:
            del error  # its traceback has this frame: a cycle would keep the observation until a garbage collection
    said = format_exception_only(error)[-1].strip()
    raise StepFailed(f"{type(value).__name__} cannot be sent, since reading it raised {said}") from error


def place_of(place: list[Any]) -> list[Any]:
    """The path to a fault in an action, without the names of the kinds of actions."""
    return [part for part in place if part not in KINDS]


def too_many_faults(count: int) -> list[dict[str, Any]]:
    """The list of faults for a message with more than `MOST_FAULTS`."""
    return [{"type": "too_many_faults", "loc": [], "msg": f"{count} faults: more than {MOST_FAULTS} are not listed"}]


def _json_safe(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return _json_safe_scalar(value)
    if depth == 0:
        return f"{type(value).__name__}, nested too deeply"
    if isinstance(value, Mapping):
        return {_json_safe_scalar(str(key)): _json_safe(content, depth - 1) for key, content in value.items()}
    if isinstance(value, (list, tuple, Set)):
        return [_json_safe(content, depth - 1) for content in value]
    try:
        return _json_safe(to_jsonable_python(value, inf_nan_mode="strings"), depth - 1)
    except (ValueError, RecursionError):
        return _json_safe_scalar(repr(value))


def _json_safe_scalar(value: str | float | None) -> str | float | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if value is None or value in _INT64:
        return value
    return f"{value:#x}"  # Python limits the number of decimal digits
