"""What makes environments, said so that a fresh process finds it: by the name of its module and its own."""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from ...errors import UsageError

__all__ = ["refer"]


def refer(factory: Callable[[], Any]) -> bytes:
    """Pickles a factory by reference.

    Args:
        factory: A class or a function of a module, or a partial of one.

    Raises:
        UsageError: Another process could not find it; the message says what to change.
    """
    made_by: Any = factory
    while isinstance(made_by, functools.partial):
        made_by = made_by.func
    if "__reference__" not in getattr(made_by, "__dict__", ()):
        _check(made_by)
    try:
        return dumps(factory)
    except Exception as error:
        raise UsageError(
            f"{_name(made_by)} cannot be sent to another process, which process isolation has to do: {error}"
        ) from error


def dumps(value: Any) -> bytes:
    """Pickles what a session process is told.

    A class that is made at run time says by `__reference__ = (function, *arguments)` how another process gets it.
    """
    if "__reference__" in type(value).__dict__:
        return _dumps_with_references(value)
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return _dumps_with_references(value)


def _dumps_with_references(value: Any) -> bytes:
    target = io.BytesIO()
    _Pickler(target, pickle.HIGHEST_PROTOCOL).dump(value)
    return target.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        reference = vars(value).get("__reference__") if isinstance(value, type) else None
        return NotImplemented if reference is None else (reference[0], tuple(reference[1:]))


def _check(made_by: Any) -> None:
    name = _name(made_by)
    if not (isinstance(made_by, type) or inspect.isfunction(made_by)):
        raise UsageError(
            f"process isolation needs a class or a function of a module, or a partial of one, to make environments; "
            f"this is a {type(made_by).__name__}"
        )
    if made_by.__module__ == "__main__":
        raise UsageError(
            f"{name} is defined in the script that was started, where no other process finds it: move it to a module "
            "and import it from there, or serve without process isolation"
        )
    found: Any = sys.modules.get(made_by.__module__)
    for part in made_by.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not made_by:
        raise UsageError(
            f"{name} cannot be found by its name in module {made_by.__module__}, which another process has to do: "
            "define it at the top of the module, or serve without process isolation"
        )


def _name(made_by: Any) -> str:
    return str(getattr(made_by, "__qualname__", type(made_by).__name__))
