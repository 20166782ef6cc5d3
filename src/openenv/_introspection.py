"""Declarations of functions and classes: accepted arguments, the function of a partial, type arguments of a base."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin


class AcceptedArguments:
    """The keyword arguments of one function.

    Args:
        names: The arguments that it accepts by name; None if it accepts any.
        taken: Names of arguments that are passed by position and must not be repeated.
    """

    def __init__(self, names: frozenset[str] | None, taken: frozenset[str]):
        self._names = names
        self._taken = taken

    def takes(self, name: str) -> bool:
        """Whether the function accepts an argument of that name."""
        return name not in self._taken and (self._names is None or name in self._names)

    def of(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The subset of the arguments that the function accepts."""
        names, taken = self._names, self._taken
        return {
            name: value for name, value in arguments.items() if name not in taken and (names is None or name in names)
        }


def accepted_arguments(function: Callable[..., Any], positional: int = 0) -> AcceptedArguments:
    """Reads a signature.

    Args:
        function: A bound method or a function.
        positional: Number of arguments that the caller passes by position.
    """
    parameters = list(inspect.signature(function).parameters.values())
    taken = frozenset(parameter.name for parameter in parameters[:positional])
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return AcceptedArguments(None, taken)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return AcceptedArguments(
        frozenset(parameter.name for parameter in parameters if parameter.kind in by_name), taken
    )


def unwrap_partial(function: Any) -> Any:
    """The function or class inside a `functools.partial`, at any depth; any other value unchanged."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def type_arguments(cls: type[Any], base: type[Any]) -> tuple[Any, ...]:
    """The type arguments that a class gives to a generic base: `EnvClient[A, O, S]` gives (A, O, S).

    Follows generic classes in between, with their parameters in any order. Returns `()` if an argument is missing.
    """
    arguments = _filled(cls, base, ())
    return () if any(isinstance(argument, TypeVar) for argument in arguments) else arguments


def _filled(cls: type[Any], base: type[Any], given: tuple[Any, ...]) -> tuple[Any, ...]:
    if cls is base:
        return given
    values = dict(zip(getattr(cls, "__parameters__", ()), given, strict=False))
    for declared in cls.__dict__.get("__orig_bases__", cls.__bases__):
        parent = get_origin(declared) or declared
        if isinstance(parent, type) and issubclass(parent, base):
            return _filled(parent, base, tuple(values.get(part, part) for part in get_args(declared)))
    return ()
