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
        UVProvider,
    )
    from . import providers as providers
    from . import uv_provider as uv_provider

__all__ = [
    "ContainerProvider",
    "DockerSwarmProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "RuntimeProvider",
    "UVProvider",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ContainerProvider": "openenv.providers",
        "DockerSwarmProvider": "openenv.providers",
        "KubernetesProvider": "openenv.providers",
        "LocalDockerProvider": "openenv.providers",
        "RuntimeProvider": "openenv.providers",
        "UVProvider": "openenv.providers",
        "providers": "openenv.core.containers.runtime.providers",
        "uv_provider": "openenv.core.containers.runtime.uv_provider",
    },
)
