"""Errors on the wire: facts and data that every codec can write."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from math import isfinite
from traceback import format_exception_only
from typing import Any

from pydantic_core import to_jsonable_python

from ..errors import OpenEnvError, StepFailed
from ..telemetry.logs import warn_once

logger = logging.getLogger("openenv.protocol")
KINDS = ("(list_tools)", "(call_tool)", "(action)")
"""How a server that takes tool actions beside others calls the kinds; no field has such a name."""
# Joins the metadata of the reply to a reset with a seed that the environment does not take.
UNSEEDED = {"seedable": False}
# Faults of one message that are listed: a longer list may be ten times as large as the message.
MOST_FAULTS = 100
# Deeper data is described in words.
_MAX_DEPTH = 10
_INT64 = range(-(2**63), 2**63)


def error_facts(error: OpenEnvError) -> dict[str, Any]:
    """The `error` of a reply: facts and, where there is any, `data`, in what every codec can write."""
    facts: dict[str, Any] = _json_safe(error.facts(), _MAX_DEPTH)
    if error.data:
        try:
            facts["data"] = _json_safe(error.data, _MAX_DEPTH)
        except Exception as fault:  # noqa: BLE001 - the edge to foreign code: an object that cannot describe itself
            name = type(error).__qualname__
            warn_once(
                logger, "the data of a %s cannot be written and are left out: %s", name, type(fault).__qualname__
            )
            facts["data"] = {}
    return facts


def unsendable_error(value: Any, error: BaseException) -> StepFailed:
    """The error for a value of an environment that raised while it was written."""
    said = format_exception_only(error)[-1].strip()
    return StepFailed(f"{type(value).__name__} cannot be sent, since reading it raised {said}")


def place_of(place: list[Any]) -> list[Any]:
    """The place of a fault in an action, without the names of the kinds of actions."""
    return [part for part in place if part not in KINDS]


def too_many_faults(count: int) -> list[dict[str, Any]]:
    """The list of faults where there are more than `MOST_FAULTS`."""
    return [{"type": "too_many_faults", "loc": [], "msg": f"{count} faults: more than {MOST_FAULTS} are not listed"}]


def _json_safe(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return _json_safe_scalar(value)
    if depth == 0:
        return f"{type(value).__name__}, too deep to tell"
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
    return f"{value:#x}"  # its decimal digits may be too many for Python
