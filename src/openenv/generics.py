"""The types a class was made for, read from how it was declared."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

__all__ = ["type_arguments"]


def type_arguments(cls: type[Any], base: type[Any]) -> tuple[Any, ...]:
    """The arguments with which a class fills in a generic base: `EnvClient[A, O, S]` gives (A, O, S).

    A bare base, or one that is filled in with type variables, gives `()`.
    """
    for parent in cls.__mro__:
        for declared in parent.__dict__.get("__orig_bases__", ()):
            origin = get_origin(declared)
            if isinstance(origin, type) and issubclass(origin, base):
                arguments = get_args(declared)
                if not any(isinstance(argument, TypeVar) for argument in arguments):
                    return arguments
    return ()
