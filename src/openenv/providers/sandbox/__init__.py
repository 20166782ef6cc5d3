"""Servers as jobs on the Hugging Face Hub, reached over one local proxy."""

from __future__ import annotations

from .provider import HFSandboxProvider

__all__ = ["HFSandboxProvider"]
