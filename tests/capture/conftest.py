"""A proxy in front of an ideal engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from openenv.capture import CaptureServer

from ..model_server import ModelServer, model_server

Proxies = Callable[..., CaptureServer]


@pytest.fixture
def engine() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def proxies(engine: ModelServer) -> Iterator[Proxies]:
    """Starts proxies in front of the engine, which end with the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> CaptureServer:
            return stack.enter_context(CaptureServer(llm_url=engine.url, **options))

        yield start


@pytest.fixture
def proxy(proxies: Proxies) -> CaptureServer:
    return proxies()
