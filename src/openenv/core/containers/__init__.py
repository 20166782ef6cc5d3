"""`openenv.providers` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from . import runtime as runtime

__all__ = []

__getattr__, __dir__ = take(__name__, __all__)
