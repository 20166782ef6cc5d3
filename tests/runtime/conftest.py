"""What tests of several executors need."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture
def helpers() -> Iterator[ThreadPoolExecutor]:
    """Threads for what may block, as a session manager has them."""
    with ThreadPoolExecutor(2, thread_name_prefix="test-helper") as pool:
        yield pool
