"""Copies of running environments, which go on on their own: for `fork`."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator
from typing import Any, TypeVar

from gymnasium.utils import EzPickle

__all__ = ["duplicate"]

Copied = TypeVar("Copied")

# Its surfaces, clocks and fonts know nothing of `copy`, and are in every environment that has drawn once.
_DRAWING = "pygame."
_INNER = ("env", "aec_env")


def duplicate(environment: Copied, inner: Any, memo: dict[int, Any], shared: Container[str] = ()) -> Copied:
    """A deep copy of an environment that wraps another one, with its random numbers where they are.

    Args:
        environment: What to copy.
        inner: The environment within, and perhaps its wrappers.
        memo: Of `copy.deepcopy`.
        shared: Attributes of `environment` that stay the same objects.

    Raises:
        TypeError: Something that the environment holds cannot be copied.
    """
    layers = list(_layers(inner))
    for part in (part for layer in layers for part in _drawn_with(vars(layer), 3)):
        memo[id(part)] = part.copy() if hasattr(part, "get_rect") else part
    # Left to themselves, these would begin anew from the arguments of their constructors.
    renewed = [layer for layer in layers if isinstance(layer, EzPickle)]
    for layer in renewed:
        memo[id(layer)] = object.__new__(type(layer))
    made: Copied = object.__new__(type(environment))
    memo[id(environment)] = made
    for name, value in vars(environment).items():
        vars(made)[name] = value if name in shared else copy.deepcopy(value, memo)
    for layer in renewed:
        vars(memo[id(layer)]).update(copy.deepcopy(vars(layer), memo))
    return made


def _layers(inner: Any) -> Iterator[Any]:
    """An environment, and what it wraps."""
    yield inner
    for name in _INNER:
        if name in vars(inner):
            yield from _layers(vars(inner)[name])


def _drawn_with(value: Any, depth: int) -> Iterator[Any]:
    if f"{type(value).__module__}.".startswith(_DRAWING):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _drawn_with(part, depth - 1)
