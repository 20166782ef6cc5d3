"""`openenv.evals` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from . import base as base
    from . import inspect_harness as inspect_harness
    from . import types as types

__all__ = [
    "EvalConfig",
    "EvalHarness",
    "EvalResult",
    "InspectAIHarness",
]

__getattr__, __dir__ = take(__name__, __all__)
