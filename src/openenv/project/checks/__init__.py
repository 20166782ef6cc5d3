"""What `openenv validate` looks at, and what it found."""

from __future__ import annotations

from .finding import Finding, Level, Outcome
from .report import Report

__all__ = ["Finding", "Level", "Outcome", "Report"]
