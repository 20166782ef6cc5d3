"""Imports that happen when a name is first used (PEP 562), and of modules that a system may lack."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a module that re-exports names of other modules.

    Use it as `__getattr__, __dir__ = lazy(__name__, {"Name": "package.module"})`. A name is looked up once and then
    kept in the module. If the home is a submodule of that name, the name is the submodule itself.

    Args:
        package: The module's `__name__`.
        homes: For each name, the full name of the module that defines it.

    Returns:
        The two functions. The first raises AttributeError for a name that is missing in `homes` or in its home.
    """

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(getattr(sys.modules[package], "__all__", homes))

    return get, names


def module_or_none(name: str) -> Any:
    """A module of the standard library; None on systems that lack it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
