"""Servers in Pods of a Kubernetes cluster."""

from __future__ import annotations

from .manifests import PodOptions
from .provider import KubernetesProvider

__all__ = ["KubernetesProvider", "PodOptions"]
