from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from .server import AnswerServer, answer_server


@pytest.fixture
def server() -> Iterator[AnswerServer]:
    with answer_server() as served:
        yield served


@pytest.fixture(params=[False, True], ids=["http", "sdk"])
def sdk(request: pytest.FixtureRequest) -> bool:
    """By which road. The SDKs are no dependencies; where they are installed, all must be as without them."""
    if request.param and not all(map(importlib.util.find_spec, ("openai", "anthropic"))):
        pytest.skip("the vendors' SDKs are not installed")
    return bool(request.param)
