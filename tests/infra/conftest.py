"""Real places that several files of tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .parts.swarm import Node, everywhere, swarm_of


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """A swarm of two engines that have the images of the tests."""
    pytest.importorskip("docker")
    pytest.importorskip("envoy")
    with swarm_of(2) as nodes:
        everywhere(nodes)
        yield nodes
