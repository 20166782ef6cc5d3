"""The types a class was made for, read from how it was declared."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

__all__ = ["type_arguments"]


def type_arguments(cls: type[Any], base: type[Any]) -> tuple[Any, ...]:
    """The arguments with which a class fills in a generic base: `EnvClient[A, O, S]` gives (A, O, S).

    Through generic classes in between, in whatever order they take their parameters. A base that is not
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
