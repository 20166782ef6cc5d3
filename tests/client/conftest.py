from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from openenv import _backoff
from openenv.client import session

from ..unhurried import Unhurried


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Clients and the servers that tests make up are mostly on one loop, and their times are short."""
    return Unhurried


@pytest.fixture
def hurry(monkeypatch):
    """Has clients connect again at once."""
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.002)
