"""`openenv.providers` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._imports import lazy

if TYPE_CHECKING:
    from ....providers import (
        ContainerProvider,
        DockerSwarmProvider,
        KubernetesProvider,
        LocalDockerProvider,
        RuntimeProvider,
    )

__all__ = [
    "ContainerProvider",
    "DockerSwarmProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "RuntimeProvider",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.providers"))
