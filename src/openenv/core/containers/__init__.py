"""`openenv.providers` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from . import runtime as runtime

__all__ = []

__getattr__, __dir__ = lazy(
    __name__,
    {
        "runtime": "openenv.core.containers.runtime",
    },
)
