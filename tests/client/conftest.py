from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from openenv.client import redial, resumption

from ..unhurried import Unhurried


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Clients and the servers that tests make up are mostly on one loop, and their times are short."""
    return Unhurried


@pytest.fixture
def hurry(monkeypatch):
    """Has clients connect again at once."""
    for module in (redial, resumption):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.002)
