"""A real Kubernetes for all tests here, and for each a namespace with the rights that the documents ask for."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openenv.providers import KubernetesProvider

from .parts.cluster import Cluster, cluster_of
from .parts.programs import until

PROGRAMS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openenv" / "kubernetes-1.20.2"
GONE_S = 180.0
LATE_S = 30.0
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Space:
    """A namespace, and who may do in it what deploy/kubernetes/access.yaml says.

    Attributes:
        cluster: Where it is.
        name: Its name.
        kubeconfig: The file of its ServiceAccount.
    """

    cluster: Cluster
    name: str
    kubeconfig: Path

    def provider(self, **options: Any) -> KubernetesProvider:
        """A provider for whom a kubelet that is late, and so not ready for some seconds, is no reason to fail."""
        defaults = {"kubeconfig": self.kubeconfig, "reach": "cluster", "unschedulable_s": LATE_S}
        return KubernetesProvider(**{**defaults, **options})

    def kubectl(self, *arguments: str, **more: Any) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments, **more)

    @property
    def names(self) -> list[str]:
        return self.cluster.names(self.name)

    def until_without(self, name: str) -> None:
        """Waits until no object has something in its name."""
        until(lambda: not any(name in each for each in self.names), GONE_S, f"{name} is not gone")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("kr8s", reason="make test-kubernetes installs what these tests need")
    if not (PROGRAMS / "complete").exists():
        pytest.skip(f"no Kubernetes in {PROGRAMS}: make test-kubernetes builds it there")
    if os.geteuid() != 0:
        pytest.skip("containerd and kubelet need root")
    missing = [each for each in ("ip", "openssl", "setpriv", "unshare") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: iproute2, openssl, util-linux)")
    with cluster_of(PROGRAMS) as cluster:
        yield cluster


@contextmanager
def space_of(cluster: Cluster) -> Iterator[Space]:
    """A namespace in which nothing may be left, of a cluster whose node is ready."""
    cluster.until_ready()
    name = f"tests-{next(_NUMBERS)}"
    space = Space(cluster, name, cluster.account(name))
    yield space
    left = space.names
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    assert left == []


@pytest.fixture
def space(cluster: Cluster) -> Iterator[Space]:
    with space_of(cluster) as space:
        yield space
