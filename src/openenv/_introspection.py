"""What functions and classes declare: accepted arguments, the function of a partial, arguments of a generic base."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin


class AcceptedArguments:
    """The keyword arguments of one function.

    Args:
        names: Those it takes by name; None if it takes any.
        taken: Names that are given by position and must not come again.
    """

    def __init__(self, names: frozenset[str] | None, taken: frozenset[str]):
        self._names = names
        self._taken = taken

    def takes(self, name: str) -> bool:
        """Whether the function takes an argument of that name."""
        return name not in self._taken and (self._names is None or name in self._names)

    def of(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Those of the arguments that the function takes."""
        names, taken = self._names, self._taken
        return {
            name: value for name, value in arguments.items() if name not in taken and (names is None or name in names)
        }


def accepted_arguments(function: Callable[..., Any], positional: int = 0) -> AcceptedArguments:
    """Reads a signature.

    Args:
        function: A bound method or a function.
        positional: How many arguments will be given by position.
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
    """The function or class that a `functools.partial` calls in the end; anything else as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def type_arguments(cls: type[Any], base: type[Any]) -> tuple[Any, ...]:
    """The arguments with which a class fills in a generic base: `EnvClient[A, O, S]` gives (A, O, S).

    Through generic classes in between, in any order of their parameters. A base that is not
    filled in completely gives `()`.
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
