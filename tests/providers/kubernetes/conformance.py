"""What every provider must hold, on the stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.providers import KubernetesProvider, LaunchSpec, Provider
from openenv.testing import ProviderConformance

from .api import Cluster

__all__ = ["Conformance"]

PYTHON = [sys.executable, "-m"]


class Conformance(ProviderConformance):
    """Takes a fixture `place`: the stand-in, and a kubeconfig for it."""

    reach = "forward"

    @pytest.fixture(autouse=True)
    def _stand_in(self, place: tuple[Cluster, Path]) -> Iterator[None]:
        self.cluster, self.kubeconfig = place
        yield
        assert {kind for kind, _, _ in self.cluster.store.things} <= {"Namespace", "Event"}
        assert self.cluster.wrong == []

    def provider(self) -> Provider:
        return KubernetesProvider(kubeconfig=self.kubeconfig, reach=self.reach)

    def spec(self, behaviour: str) -> LaunchSpec:
        return LaunchSpec(image="python:here", command=[*PYTHON, "openenv.testing.misbehaving", behaviour])

    async def look_for_remains(self, provider: Any, deployment: Any) -> list[str]:
        return [name for _, _, name in list(self.cluster.store.things) if deployment.name in name and "." not in name]
