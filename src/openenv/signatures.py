"""Which of the arguments at hand a function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["Accepted", "accepted"]


class Accepted:
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


def accepted(function: Callable[..., Any], positional: int = 0) -> Accepted:
    """Reads a signature.

    Args:
        function: A bound method or a function.
        positional: How many arguments will be given by position.
    """
    parameters = list(inspect.signature(function).parameters.values())
    taken = frozenset(parameter.name for parameter in parameters[:positional])
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return Accepted(None, taken)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return Accepted(frozenset(parameter.name for parameter in parameters if parameter.kind in by_name), taken)
