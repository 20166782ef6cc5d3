"""`openenv.tools.PyExecutor` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...tools import PyExecutor
    from ...types import CodeExecResult

__all__ = [
    "CodeExecResult",
    "PyExecutor",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CodeExecResult": "openenv.types",
        "PyExecutor": "openenv.tools",
    },
)
