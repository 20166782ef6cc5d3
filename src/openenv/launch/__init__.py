"""Servers and what uses them, together: clients that come with a server, deployments, gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .client import Launch, from_docker_image, from_env, from_hub
    from .deploying import Deploying, deploy
    from .gateway import Gateway
    from .in_process import app_in_process

__all__ = [
    "Deploying",
    "Gateway",
    "Launch",
    "app_in_process",
    "deploy",
    "from_docker_image",
    "from_env",
    "from_hub",
]

_HOMES = {
    "Deploying": "openenv.launch.deploying",
    "Gateway": "openenv.launch.gateway",
    "Launch": "openenv.launch.client",
    "app_in_process": "openenv.launch.in_process",
    "deploy": "openenv.launch.deploying",
    "from_docker_image": "openenv.launch.client",
    "from_env": "openenv.launch.client",
    "from_hub": "openenv.launch.client",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
