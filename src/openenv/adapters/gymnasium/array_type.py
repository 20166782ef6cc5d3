"""Arrays with bounds as types: nested lists for pydantic."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import numpy as np
from annotated_types import Predicate
from numpy.typing import NDArray
from pydantic import Field

__all__ = ["array_type"]

Array = NDArray[Any]

# Beyond this, listing the bounds of every element would make a schema that nobody reads.
LISTED_ELEMENTS = 64


def array_type(low: Array, high: Array, dtype: np.dtype[Any]) -> Any:
    """The annotation for arrays with bounds, which are of the arrays' shape.

    Args:
        low: Lowest numbers.
        high: Highest numbers.
        dtype: What the numbers become.
    """
    nested: Any = _element_type(low, high, dtype)
    for length in reversed(low.shape):
        nested = Annotated[list[nested], Field(min_length=length, max_length=length)]
    if _says_all(low, high):
        return nested
    if low.ndim == 1 and low.size <= LISTED_ELEMENTS:
        nested = Annotated[nested, Field(json_schema_extra={"prefixItems": _listed(low, high, dtype)})]
    # Not a validator, which might change the value: servers write what is only restricted without pydantic.
    return Annotated[nested, Predicate(functools.partial(_within, low, high, dtype))]


def _element_type(low: Array, high: Array, dtype: np.dtype[Any]) -> Any:
    """A number within the widest of the bounds; those that are infinite are no part of it."""
    if dtype.kind == "b":
        return bool
    bounds = _bounds(low.min(), high.max()) if low.size else {}
    # NaN is in no bounds, and infinity in none that are finite: pydantic refuses both without being told.
    kind = int if dtype.kind in "iu" else float
    return Annotated[kind, Field(**bounds)] if bounds else kind


def _says_all(low: Array, high: Array) -> bool:
    """Whether the type of the elements alone keeps out whatever is out of bounds."""
    if low.size == 0:
        return True
    if low.dtype.kind == "b":
        return not low.any() and bool(high.all())
    same = bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
    return same and bool(np.isfinite(low.flat[0]) and np.isfinite(high.flat[0]))


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    given = {"ge": low.item(), "le": high.item()}
    return {name: bound for name, bound in given.items() if np.isfinite(bound)}


def _listed(low: Array, high: Array, dtype: np.dtype[Any]) -> list[Any]:
    kind = "integer" if dtype.kind in "iu" else "number"
    names = {"ge": "minimum", "le": "maximum"}
    return [
        {"type": kind, **{names[name]: bound for name, bound in _bounds(*pair).items()}}
        for pair in zip(low, high, strict=True)
    ]


def _within(low: Array, high: Array, dtype: np.dtype[Any], value: Any) -> bool:
    """True, or a `ValueError` that names the place and its bounds."""
    with np.errstate(over="ignore"):
        array = np.asarray(value, dtype=dtype)
    outside = ~((low <= array) & (array <= high))  # not the opposite comparisons: NaN is in no bounds
    if dtype.kind == "f":
        outside |= np.isinf(array) & np.isfinite(np.asarray(value, dtype=np.float64))
    if outside.any():
        place = tuple(int(index) for index in np.argwhere(outside)[0])
        found = functools.reduce(lambda part, index: part[index], place, value)
        raise ValueError(
            f"{found} at {list(place)} is not between {low[place].item()} and {high[place].item()} ({dtype.name})"
        )
    return True
