"""A stand-in for a Docker engine, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..client.environments import ThreadCounter, app_of
from ..server.wires import served
from .engine import Engine, standing_in


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where a server listens that the containers are said to run."""
    with served(app_of(ThreadCounter), ws="openenv.server.transports.uvicorn:FastPath") as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
def engine(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine that DOCKER_HOST names."""
    engine = Engine(port)
    with standing_in(engine) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        yield engine
