"""Servers on a Kubernetes cluster."""

from __future__ import annotations

from .provider import KubernetesProvider
from .workload import PodOptions

__all__ = ["KubernetesProvider", "PodOptions"]
