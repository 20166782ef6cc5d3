"""An environment whose module has imported numpy's random numbers before any session is there."""

from __future__ import annotations

import numpy

from .wild import Wild

__all__ = ["Dice"]


class Dice(Wild):
    def draw(self) -> float:
        return float(numpy.random.random())
