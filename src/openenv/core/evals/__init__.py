"""`openenv.evals` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...evals import EvalConfig, EvalHarness, EvalResult, InspectAIHarness
    from . import base as base
    from . import inspect_harness as inspect_harness
    from . import types as types

__all__ = [
    "EvalConfig",
    "EvalHarness",
    "EvalResult",
    "InspectAIHarness",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EvalConfig": "openenv.evals",
        "EvalHarness": "openenv.evals",
        "EvalResult": "openenv.evals",
        "InspectAIHarness": "openenv.evals",
        "base": "openenv.core.evals.base",
        "inspect_harness": "openenv.core.evals.inspect_harness",
        "types": "openenv.core.evals.types",
    },
)
