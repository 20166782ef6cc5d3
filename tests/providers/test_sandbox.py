"""Servers as jobs on the Hub, by the real huggingface_hub against a stand-in of its HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from openenv.providers import HFSandboxProvider, Provider, StartRate
from openenv.testing import ProviderConformance

from .hub import TOKEN, Hub, running_hub

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.real


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as stand_in:
        yield stand_in


@pytest.mark.slow
class TestHFSandboxProvider(ProviderConformance):
    ready_s: ClassVar[float] = 30.0

    @pytest.fixture(autouse=True)
    def _stand_in(self, hub: Hub) -> Iterator[None]:
        self.hub = hub
        yield
        assert hub.alive == []

    def provider(self) -> Provider:
        return HFSandboxProvider(
            endpoint=self.hub.url, token=TOKEN, glance_s=0.05, start_rate=StartRate(pause_s=0.05)
        )
