"""What a sample says about what it was drawn from.

Means have Student's interval (Student, 1908): exact for normal values, and good for the mean of some dozens of others
by the central limit theorem. Shares have Wilson's score interval (Wilson, 1927), which stays within 0 and 1 and is
honest for few values, and for shares of 0 and 1. Differences of pairs have Student's interval of the differences,
those of independent samples have Welch's (1947). Both are of no width where all values are alike, as shares of few
episodes often are; differences of shares have Newcombe's intervals (1998), which are made of Wilson's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, median, stdev

from pydantic import BaseModel, ConfigDict

from .._statistics import t_quantile

LEVEL = 0.95

_quantile = lru_cache(t_quantile)


class Sample(BaseModel):
    """Values, in short.

    Attributes:
        count: How many.
        mean, std, least, median, most: Of the values; `std` is None for one value.
        low, high: Confidence interval of the mean, 95 % (Student's t); None for one value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int
    mean: float
    std: float | None
    low: float | None
    high: float | None
    least: float
    median: float
    most: float


class Share(BaseModel):
    """How many of some were so.

    Attributes:
        count: Of how many.
        hits: How many were so.
        share: Their share.
        low, high: Confidence interval of the share, 95 % (Wilson's).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int
    hits: int
    share: float
    low: float
    high: float


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Student's confidence interval of the mean; None for fewer than two values, which say nothing about chance."""
    if len(values) < 2:
        return None
    reach = _quantile(0.5 + level / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def sample_of(values: Sequence[float]) -> Sample | None:
    """Values in short; None if there are none."""
    if not values:
        return None
    low, high = mean_interval(values) or (None, None)
    return Sample(
        count=len(values),
        mean=fmean(values),
        std=stdev(values) if len(values) > 1 else None,
        low=low,
        high=high,
        least=min(values),
        median=median(values),
        most=max(values),
    )


def share_interval(first: Sequence[bool], second: Sequence[bool], paired: bool = False) -> tuple[float, float] | None:
    """Newcombe's confidence interval, 95 %, of the second share minus the first; None if one of them is of nothing.

    Args:
        first, second: Whether each was so.
        paired: Values at the same place belong together, so there are as many of both.
    """
    ours, theirs = share_of(sum(first), len(first)), share_of(sum(second), len(second))
    if ours is None or theirs is None:
        return None
    alike = _correlation(first, second) if paired else 0.0
    difference = theirs.share - ours.share
    down = _reach(theirs.share - theirs.low, ours.high - ours.share, alike)
    up = _reach(theirs.high - theirs.share, ours.share - ours.low, alike)
    return difference - down, difference + up


def share_of(hits: int, count: int, level: float = LEVEL) -> Share | None:
    """A share with Wilson's interval; None of nothing."""
    if not count:
        return None
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, square = hits / count, z * z / count
    middle = (share + square / 2) / (1 + square)
    reach = z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    # At both ends the interval reaches them exactly, but for the last digit of the arithmetic.
    low = 0.0 if hits == 0 else max(0.0, middle - reach)
    high = 1.0 if hits == count else min(1.0, middle + reach)
    return Share(count=count, hits=hits, share=share, low=low, high=high)


def _reach(one: float, other: float, alike: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * alike * one * other + other * other))


def _correlation(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Phi, with Newcombe's correction for continuity where it is positive."""
    count, ours, theirs = len(first), sum(first), sum(second)
    spread = ours * (count - ours) * theirs * (count - theirs)
    if not spread:
        return 0.0
    both = sum(one and other for one, other in zip(first, second, strict=True))
    together = both * count - ours * theirs
    return (max(0.0, together - count / 2) if together > 0 else together) / math.sqrt(spread)
