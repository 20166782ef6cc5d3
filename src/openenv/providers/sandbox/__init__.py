"""Servers as jobs on the Hub, reached over one local proxy for all of them."""

from __future__ import annotations

from .provider import HFSandboxProvider

__all__ = ["HFSandboxProvider"]
