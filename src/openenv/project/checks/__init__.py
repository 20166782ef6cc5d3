"""The findings of `openenv validate`."""

from __future__ import annotations

from .findings import Finding, Level, Outcome, Report

__all__ = ["Finding", "Level", "Outcome", "Report"]
