"""Where environments run: processes and containers, started and stopped for a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .docker import LocalDockerProvider
    from .kubernetes import KubernetesProvider
    from .local import LocalProvider
    from .provider import ContainerProvider, RuntimeProvider
    from .swarm import DockerSwarmProvider
    from .uv import UVProvider

__all__ = [
    "ContainerProvider",
    "DockerSwarmProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "LocalProvider",
    "RuntimeProvider",
    "UVProvider",
]

_HOMES = {
    "ContainerProvider": "openenv.providers.provider",
    "DockerSwarmProvider": "openenv.providers.swarm",
    "KubernetesProvider": "openenv.providers.kubernetes",
    "LocalDockerProvider": "openenv.providers.docker",
    "LocalProvider": "openenv.providers.local",
    "RuntimeProvider": "openenv.providers.provider",
    "UVProvider": "openenv.providers.uv",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
