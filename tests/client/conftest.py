from __future__ import annotations

import pytest

from openenv.client import redial, resumption


@pytest.fixture
def hurry(monkeypatch):
    """Has clients connect again at once."""
    for module in (redial, resumption):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.002)
