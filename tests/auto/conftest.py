"""A folder that distributions are installed in."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.settings import ClientSettings

from ..modules import forget


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """On the search path; what was imported from it is forgotten after the test."""
    for setting in ClientSettings.table():
        monkeypatch.delenv(setting.variable, raising=False)
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(place)  # which undoes what tests add to it as well
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    yield place
    forget(tmp_path)
