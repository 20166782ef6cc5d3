"""A name that existing programs import, for servers on a Kubernetes cluster."""

from __future__ import annotations

from typing import Any

from ..errors import ProviderFailed
from .provider import ContainerProvider

__all__ = ["KubernetesProvider"]


class KubernetesProvider(ContainerProvider):
    """Not there yet.

    Raises:
        ProviderFailed: Always.
    """

    def __init__(self, *_: Any, **__: Any):
        raise ProviderFailed(
            "KubernetesProvider is not there yet: deploy the image yourself and pass EnvClient(base_url=...) the "
            "address of its Service, or use DockerSwarmProvider"
        )

    def start_container(self, image: str, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def stop_container(self) -> None:
        raise NotImplementedError

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        raise NotImplementedError
