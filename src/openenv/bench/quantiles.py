"""Quantiles by nearest rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Spread", "nearest_rank", "spread"]


class Spread(NamedTuple):
    """What a latency column says. Seconds; None where nothing was measured."""

    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed: the value of rank ceil(share * n).

    It is always one of the values that were measured; nothing is interpolated.

    Args:
        ordered: Values in ascending order.
        share: Above 0 and at most 1; 0.99 is the P99.

    Returns:
        None if there are no values.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}: it must be above 0 and at most 1")
    if not ordered:
        return None
    # 0.07 * 100 is 7.000000000000001, whose ceiling would be one rank too high.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]


def spread(values: Iterable[float | None]) -> Spread:
    """The quantiles of a column; None, a phase that was not reached, does not count."""
    ordered = sorted(value for value in values if value is not None)
    return Spread(*(nearest_rank(ordered, share) for share in (0.50, 0.90, 0.95, 0.99)))
