"""`openenv.client.EnvClient` under its older name."""

from __future__ import annotations

from ._homes import *

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

__getattr__, __dir__ = take(__name__, __all__)
