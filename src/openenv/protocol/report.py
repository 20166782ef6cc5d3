"""What an error says on the wire, whatever its message and data hold: it must reach whoever caused it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import isfinite
from typing import Any

from pydantic_core import to_jsonable_python

from ..errors import OpenEnvError

__all__ = ["error_facts"]

# Deeper data is told in words.
_MAX_DEPTH = 10
_INT64 = range(-(2**63), 2**63)


def error_facts(error: OpenEnvError) -> dict[str, Any]:
    """The `error` of a reply: facts and, where there is any, `data`, in what every codec can write."""
    facts = error.facts()
    if error.data:
        facts["data"] = error.data
    told: dict[str, Any] = _told(facts, _MAX_DEPTH)
    return told


def _told(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return _told_scalar(value)
    if depth == 0:
        return f"{type(value).__name__}, too deep to tell"
    if isinstance(value, Mapping):
        return {_told_scalar(str(key)): _told(content, depth - 1) for key, content in value.items()}
    if isinstance(value, (list, tuple, Set)):
        return [_told(content, depth - 1) for content in value]
    try:
        return _told(to_jsonable_python(value, inf_nan_mode="strings"), depth - 1)
    except (ValueError, RecursionError):
        return _told_scalar(repr(value))


def _told_scalar(value: str | float | None) -> str | float | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if value is None or value in _INT64:
        return value
    return f"{value:#x}"  # its decimal digits may be too many for Python
