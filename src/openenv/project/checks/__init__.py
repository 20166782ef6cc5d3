"""The findings of `openenv validate`."""

from .findings import Finding, Level, Outcome, ValidationReport

__all__ = ["Finding", "Level", "Outcome", "ValidationReport"]
