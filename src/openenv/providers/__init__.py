"""Where environments run: servers started and stopped, on this machine and on many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .capabilities import Capabilities
    from .deployment import Deployment, Server
    from .docker import LocalDockerProvider
    from .kubernetes import KubernetesProvider
    from .local import LocalProvider
    from .one_by_one import OneByOne
    from .pace import Pace
    from .provider import ContainerProvider, Leftover, Provider, RuntimeProvider
    from .ray import RayProvider
    from .sandbox import HFSandboxProvider
    from .slurm import SlurmProvider
    from .spec import LaunchSpec, Resources
    from .swarm import DockerSwarmProvider
    from .uv import UVProvider

__all__ = [
    "Capabilities",
    "ContainerProvider",
    "Deployment",
    "DockerSwarmProvider",
    "HFSandboxProvider",
    "KubernetesProvider",
    "LaunchSpec",
    "Leftover",
    "LocalDockerProvider",
    "LocalProvider",
    "OneByOne",
    "Pace",
    "Provider",
    "RayProvider",
    "Resources",
    "RuntimeProvider",
    "Server",
    "SlurmProvider",
    "UVProvider",
]

_HOMES = {
    "Capabilities": "openenv.providers.capabilities",
    "ContainerProvider": "openenv.providers.provider",
    "Deployment": "openenv.providers.deployment",
    "DockerSwarmProvider": "openenv.providers.swarm",
    "HFSandboxProvider": "openenv.providers.sandbox",
    "KubernetesProvider": "openenv.providers.kubernetes",
    "LaunchSpec": "openenv.providers.spec",
    "Leftover": "openenv.providers.provider",
    "LocalDockerProvider": "openenv.providers.docker",
    "LocalProvider": "openenv.providers.local",
    "OneByOne": "openenv.providers.one_by_one",
    "Pace": "openenv.providers.pace",
    "Provider": "openenv.providers.provider",
    "RayProvider": "openenv.providers.ray",
    "Resources": "openenv.providers.spec",
    "RuntimeProvider": "openenv.providers.provider",
    "Server": "openenv.providers.deployment",
    "SlurmProvider": "openenv.providers.slurm",
    "UVProvider": "openenv.providers.uv",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
