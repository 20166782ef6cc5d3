"""`openenv.providers` under its older name."""

from __future__ import annotations

from ..._homes import *

__all__ = [
    "ContainerProvider",
    "DockerSwarmProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "RuntimeProvider",
]

__getattr__, __dir__ = take(__name__, __all__)
