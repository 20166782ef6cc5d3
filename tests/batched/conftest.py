from __future__ import annotations

import pytest

from openenv import _backoff
from openenv.client import session

from .environments import Counters


@pytest.fixture
def hurry(monkeypatch):
    """Has clients connect again at once."""
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.002)


@pytest.fixture(autouse=True)
def _forget():
    Counters.calls, Counters.made = [], []
    Counters.on_step = staticmethod(lambda: None)
