"""Evaluate policies: here (`evaluate`, `openenv eval`), or by external programs behind one interface.

`openenv.evals.inspect_bridge` makes tasks of Inspect AI from served environments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy
from .harness import EvalConfig, EvalHarness, EvalResult, InspectAIHarness

if TYPE_CHECKING:
    from .evaluation import evaluate
    from .report import Comparison, EvalReport, compare, read_report, write_report
    from .runner import Case, cases_of_tasks

__all__ = [
    "Case",
    "Comparison",
    "EvalConfig",
    "EvalHarness",
    "EvalReport",
    "EvalResult",
    "InspectAIHarness",
    "cases_of_tasks",
    "compare",
    "evaluate",
    "read_report",
    "write_report",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Case": f"{__name__}.runner",
        "Comparison": f"{__name__}.report",
        "EvalReport": f"{__name__}.report",
        "cases_of_tasks": f"{__name__}.runner",
        "compare": f"{__name__}.report",
        "evaluate": f"{__name__}.evaluation",
        "read_report": f"{__name__}.report",
        "write_report": f"{__name__}.report",
    },
)
