"""`openenv.core` under the name of its first releases. Every module is the same object under both names."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_OLD = f"{__name__}."
_NEW = "openenv.core."

# Submodules are found by the finder below, and by no file here.
__path__ = []


class _Alias(Loader):
    """Puts the module of the new name where the one of the old name is looked for."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(_renamed(module.__name__))


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_OLD) or find_spec(_renamed(fullname)) is None:
            return None
        return ModuleSpec(fullname, _Alias())


def _renamed(name: str) -> str:
    return _NEW + name.removeprefix(_OLD)


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("openenv.core"), name)


def __dir__() -> list[str]:
    return dir(importlib.import_module("openenv.core"))


# Before the finder of files: an aliased package has the folder of the new name, and its files would be loaded twice.
sys.meta_path[:] = [_Finder(), *(finder for finder in sys.meta_path if type(finder).__module__ != __name__)]
warnings.warn(
    "openenv_core is the old name of openenv.core: import openenv.core instead", DeprecationWarning, stacklevel=2
)
