"""What every provider must hold, for servers that are reached through the cluster's API, on the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .api import Cluster, standing_in
from .conformance import Conformance

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    cluster = Cluster()
    with standing_in(cluster, tmp_path_factory.mktemp("kubernetes")) as kubeconfig:
        yield cluster, kubeconfig


class TestThroughTheApi(Conformance):
    pass
