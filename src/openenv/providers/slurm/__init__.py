"""Servers as jobs of a Slurm cluster."""

from __future__ import annotations

from .provider import SlurmProvider

__all__ = ["SlurmProvider"]
