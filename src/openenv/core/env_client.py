"""`openenv.client.EnvClient` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from ..client import EnvClient, SyncEnvClient
    from ..client.endpoints import convert_to_ws_url
    from ..providers import ContainerProvider, LocalDockerProvider, RuntimeProvider, UVProvider
    from ..providers.launch import hf_space_subdomain
    from ..types import ActT, ObsT, StateT, StepResult

__all__ = [
    "ActT",
    "ContainerProvider",
    "EnvClient",
    "LocalDockerProvider",
    "ObsT",
    "RuntimeProvider",
    "StateT",
    "StepResult",
    "SyncEnvClient",
    "UVProvider",
    "convert_to_ws_url",
    "hf_space_subdomain",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ActT": "openenv.types",
        "ContainerProvider": "openenv.providers",
        "EnvClient": "openenv.client",
        "LocalDockerProvider": "openenv.providers",
        "ObsT": "openenv.types",
        "RuntimeProvider": "openenv.providers",
        "StateT": "openenv.types",
        "StepResult": "openenv.types",
        "SyncEnvClient": "openenv.client",
        "UVProvider": "openenv.providers",
        "convert_to_ws_url": "openenv.client.endpoints",
        "hf_space_subdomain": "openenv.providers.launch",
    },
)
