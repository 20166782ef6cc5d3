"""Servers in sandboxes of a service, such as jobs on the Hugging Face Hub, reached over one local proxy."""

from __future__ import annotations

from .hub import HFSandboxProvider
from .relay import ProxyTimeouts

__all__ = ["HFSandboxProvider", "ProxyTimeouts"]
