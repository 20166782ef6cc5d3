"""Tests that users inherit for their own environments and providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .environments import BatchedEnvironmentConformance, EnvironmentConformance
    from .providers import ProviderConformance

__all__ = ["BatchedEnvironmentConformance", "EnvironmentConformance", "ProviderConformance"]

_HOMES = {
    "BatchedEnvironmentConformance": "openenv.testing.environments",
    "EnvironmentConformance": "openenv.testing.environments",
    "ProviderConformance": "openenv.testing.providers",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
