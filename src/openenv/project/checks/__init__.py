"""The findings of `openenv validate`."""

from __future__ import annotations

from .findings import Finding, Level, Outcome, ValidationReport

__all__ = ["Finding", "Level", "Outcome", "ValidationReport"]
