from __future__ import annotations

import sys
from types import ModuleType

import pytest

from openenv._imports import lazy


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package `fast` with a name `slow` from a module that is loaded when it is first used, and a submodule."""
    package = ModuleType("fast")
    package.__getattr__, package.__dir__ = lazy(
        "fast", {"OrderedDict": "collections", "part": "fast.part", "missing": "collections"}
    )
    monkeypatch.setitem(sys.modules, "fast", package)
    monkeypatch.setitem(sys.modules, "fast.part", ModuleType("fast.part"))
    return package


def test_a_name_is_looked_up_once_and_kept(module):
    import collections

    assert "OrderedDict" not in vars(module)
    assert module.OrderedDict is collections.OrderedDict
    assert vars(module)["OrderedDict"] is collections.OrderedDict


def test_a_submodule_is_itself(module):
    assert module.part is sys.modules["fast.part"]


def test_a_name_that_nobody_has(module):
    with pytest.raises(AttributeError, match="module 'fast' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="missing"):
        module.missing  # noqa: B018
    assert "missing" not in vars(module)


def test_the_names_are_listed_before_they_are_loaded(module):
    assert dir(module) == ["OrderedDict", "missing", "part"]
    module.__all__ = ["part", "OrderedDict"]
    assert dir(module) == ["OrderedDict", "part"]
