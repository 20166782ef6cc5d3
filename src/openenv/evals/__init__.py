"""Evaluations by other programs, behind one interface."""

from .config import EvalConfig, EvalResult
from .harness import EvalHarness
from .inspect_ai import InspectAIHarness

__all__ = ["EvalConfig", "EvalHarness", "EvalResult", "InspectAIHarness"]
