"""Plain values: those that need no thought before they are written."""

from __future__ import annotations

from itertools import chain
from types import NoneType
from typing import Any, Literal

import msgspec
from pydantic_core import to_json

__all__ = ["DOLLAR", "MAX_DEPTH", "SCALARS", "encode_plain", "is_plain"]

SCALARS = frozenset({NoneType, bool, int, float, str})
_TEXT = frozenset({str})
_MAP = frozenset({dict})

DOLLAR = ord("$")
"""Begins each mark. A search for this one byte takes a tenth of the time of one for several."""

# Levels of nesting up to which a value counts as plain; deeper ones meet the encoders' own limits.
MAX_DEPTH = 100


def is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a value is only dicts with text keys, lists, tuples, texts, numbers, booleans and None.

    Of exactly these types, since subclasses have ways of their own. Such a value every encoder writes the same way.
    One that is deeper than `depth`, or holds itself, is not plain.
    """
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in SCALARS
    if depth == 0 or SCALARS.issuperset(map(type, value)):
        return depth > 0
    inner = [each for each in value if type(each) not in SCALARS]
    if len(inner) > 1 and _MAP.issuperset(map(type, inner)):  # the many calls of a batch: all of them at once
        values = [*chain.from_iterable(map(dict.values, inner))]
        return _TEXT.issuperset(map(type, chain.from_iterable(inner))) and is_plain(values, depth - 1)
    return all(is_plain(each, depth - 1) for each in inner)


def encode_plain(value: Any, inf_nan_mode: Literal["constants", "strings"] = "constants") -> bytes:
    """Writes a plain value as JSON, in which NaN and infinity are the words NaN, Infinity and -Infinity.

    Args:
        value: The value.
        inf_nan_mode: These words as they are, which is no JSON, or as texts.

    Raises:
        TypeError, ValueError, RecursionError: It is not plain after all, or holds text that is no Unicode.
    """
    text = _encode(value)
    # msgspec writes NaN as null too. Where there is a null too many, the slower encoder tells them apart.
    if text.rfind(b"null") >= 0 and text.count(b"null") != _nones(value):  # `in` and `count` take four times as long
        return to_json(value, inf_nan_mode=inf_nan_mode)
    return text


def _nones(value: Any) -> int:
    """How often None stands in the upper two levels of a dict."""
    if type(value) is not dict:
        return 0
    members = list(value.values())
    return members.count(None) + sum(list(inner.values()).count(None) for inner in members if type(inner) is dict)


_encode = msgspec.json.Encoder().encode
