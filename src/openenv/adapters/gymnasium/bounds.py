"""Which numbers are in a space of numbers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

__all__ = ["Bounds"]


class Bounds:
    """Lowest and highest numbers of a space.

    Gymnasium's own `contains` asks for a type of numbers too, and so refuses what environments take.

    Args:
        low: Lowest, of one shape with `high`, or numbers.
        high: Highest.
        dtype: What the numbers are in the space.
    """

    def __init__(self, low: Any, high: Any, dtype: np.dtype[Any]):
        self._low = low
        self._high = high
        self._dtype = dtype

    @classmethod
    def of(cls, space: Space[Any]) -> Self | None:
        """Those of a space of numbers; None for another."""
        dtype = np.dtype(space.dtype)
        if isinstance(space, spaces.Discrete):
            return cls(space.start, space.start + space.n - 1, dtype)
        if isinstance(space, spaces.MultiDiscrete):
            return cls(space.start, space.start + (space.nvec - 1), dtype)
        if isinstance(space, spaces.Box):
            return cls(space.low, space.high, dtype)
        if isinstance(space, spaces.MultiBinary):
            return cls(0, 1, dtype)
        return None

    def inside(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Which numbers of an array are in the space: within its bounds, whole where it has whole ones.

        Raises:
            TypeError: They are no numbers.
            ValueError: The array has another shape.
        """
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{array.dtype} are no numbers")
        inside: NDArray[np.bool_] = (array >= self._low) & (array <= self._high)  # not the opposite: NaN is in none
        if array.dtype.kind != "f":
            return inside
        if self._dtype.kind != "f":
            inside &= array == np.floor(array)
        elif array.dtype.itemsize > self._dtype.itemsize:
            with np.errstate(over="ignore"):
                inside &= np.isfinite(array.astype(self._dtype)) | ~np.isfinite(array)
        return inside
