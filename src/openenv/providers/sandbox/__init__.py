"""Servers as jobs on the Hugging Face Hub, reached over one local proxy."""

from __future__ import annotations

from .provider import HFSandboxProvider
from .relay import ProxyTimeouts

__all__ = ["HFSandboxProvider", "ProxyTimeouts"]
