"""`openenv.providers` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._homes import *

if TYPE_CHECKING:
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

__getattr__, __dir__ = take(__name__, __all__)
