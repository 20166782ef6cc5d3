"""A stand-in for a cluster, for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openenv.providers import KubernetesProvider, StartRate

if TYPE_CHECKING:
    from .api import Cluster

Make = Callable[..., KubernetesProvider]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One that nobody misused, and in which nothing is left."""
    from .api import Cluster, standing_in  # here, since without its packages this module cannot be skipped

    cluster = Cluster()
    with standing_in(cluster, tmp_path) as kubeconfig:
        cluster.kubeconfig = kubeconfig
        yield cluster
        left = [thing for thing in cluster.store.things if thing[0] not in {"Namespace", "Event"}]
        assert left == []
        assert cluster.wrong == []


@pytest.fixture
def provider(cluster: Cluster) -> Make:
    def make(**options: Any) -> KubernetesProvider:
        return KubernetesProvider(
            **{"kubeconfig": cluster.kubeconfig, "reach": "forward", "start_rate": StartRate(pause_s=0.05), **options}
        )

    return make
