"""What every provider must hold, on a real cluster, both ways of reaching servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openenv.providers import KubernetesProvider, LaunchSpec, Provider
from openenv.testing import ProviderConformance

from .conftest import Space
from .parts.servers import READY_S, serving

pytestmark = pytest.mark.real


class Conformance(ProviderConformance):
    ready_s = READY_S
    soon_s = 30.0
    reach = ""

    @pytest.fixture(autouse=True)
    def _here(self, space: Space) -> None:
        self.space = space

    def provider(self) -> Provider:
        return KubernetesProvider(kubeconfig=self.space.kubeconfig, reach=self.reach)

    def spec(self, behaviour: str) -> LaunchSpec:
        return serving(behaviour)

    async def look_for_remains(self, provider: Any, deployment: Any) -> list[str]:
        return [name for name in await asyncio.to_thread(lambda: self.space.names) if deployment.name in name]


class TestForwardedPorts(Conformance):
    reach = "forward"


class TestAddressesOfPods(Conformance):
    reach = "cluster"
