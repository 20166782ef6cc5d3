"""Start servers of environments here or on a cluster, put a gateway before them, and connect clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .._asyncio import on_thread
    from ..server.app import app_in_process
    from .autoscaler import Autoscaler, ScalingRule
    from .base import ContainerProvider, Leftover, Provider, RuntimeProvider, SingleServerProvider, StartRate
    from .deployment import Deployment, Server
    from .docker import LocalDockerProvider
    from .gateway.gateway import Gateway
    from .kubernetes import KubernetesProvider
    from .launch import Deploying, Launch, deploy, from_docker_image, from_env, from_hub
    from .local import LocalProvider
    from .ray import RayProvider
    from .sandbox import HFSandboxProvider
    from .sandbox.azure import ACASandboxProvider
    from .sandbox.daytona import DaytonaProvider
    from .sandbox.e2b import E2BProvider, NovitaSandboxProvider
    from .sandbox.modal import ModalProvider
    from .slurm import SlurmProvider
    from .spec import Capabilities, LaunchSpec, Resources
    from .swarm import DockerSwarmProvider
    from .uv import UVProvider

__all__ = [
    "ACASandboxProvider",
    "Autoscaler",
    "Capabilities",
    "ContainerProvider",
    "DaytonaProvider",
    "Deploying",
    "Deployment",
    "DockerSwarmProvider",
    "E2BProvider",
    "Gateway",
    "HFSandboxProvider",
    "KubernetesProvider",
    "Launch",
    "LaunchSpec",
    "Leftover",
    "LocalDockerProvider",
    "LocalProvider",
    "ModalProvider",
    "NovitaSandboxProvider",
    "Provider",
    "RayProvider",
    "Resources",
    "RuntimeProvider",
    "ScalingRule",
    "Server",
    "SingleServerProvider",
    "SlurmProvider",
    "StartRate",
    "UVProvider",
    "app_in_process",
    "deploy",
    "from_docker_image",
    "from_env",
    "from_hub",
    "on_thread",
]

_HOMES = {
    **dict.fromkeys(["ContainerProvider", "Leftover", "Provider", "RuntimeProvider"], "openenv.providers.base"),
    **dict.fromkeys(["SingleServerProvider", "StartRate"], "openenv.providers.base"),
    **dict.fromkeys(["Autoscaler", "ScalingRule"], "openenv.providers.autoscaler"),
    **dict.fromkeys(["Deployment", "Server"], "openenv.providers.deployment"),
    **dict.fromkeys(["Deploying", "Launch", "deploy"], "openenv.providers.launch"),
    **dict.fromkeys(["from_docker_image", "from_env", "from_hub"], "openenv.providers.launch"),
    **dict.fromkeys(["Capabilities", "LaunchSpec", "Resources"], "openenv.providers.spec"),
    "ACASandboxProvider": "openenv.providers.sandbox.azure",
    "DaytonaProvider": "openenv.providers.sandbox.daytona",
    "DockerSwarmProvider": "openenv.providers.swarm",
    "E2BProvider": "openenv.providers.sandbox.e2b",
    "Gateway": "openenv.providers.gateway.gateway",
    "HFSandboxProvider": "openenv.providers.sandbox",
    "KubernetesProvider": "openenv.providers.kubernetes",
    "LocalDockerProvider": "openenv.providers.docker",
    "LocalProvider": "openenv.providers.local",
    "NovitaSandboxProvider": "openenv.providers.sandbox.e2b",
    "ModalProvider": "openenv.providers.sandbox.modal",
    "RayProvider": "openenv.providers.ray",
    "SlurmProvider": "openenv.providers.slurm",
    "UVProvider": "openenv.providers.uv",
    "app_in_process": "openenv.server.app",
    "on_thread": "openenv._asyncio",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
