"""Quantiles by nearest rank, and Welch's interval for the difference of two means."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple


class Quantiles(NamedTuple):
    """The quantiles of a latency column, in seconds; None if nothing was measured."""

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
    # 0.07 * 100 is 7.000000000000001: its ceiling would be one rank too high.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]


def quantiles_of(values: Iterable[float | None]) -> Quantiles:
    """The quantiles of a column. Ignores None, which marks a phase that was not reached."""
    ordered = sorted(value for value in values if value is not None)
    return Quantiles(*(nearest_rank(ordered, share) for share in (0.50, 0.90, 0.95, 0.99)))


# Intervals of Simpson's rule, and halvings of the search: both give nine digits.
_STEPS = 2000
_HALVINGS = 60


# Which values belong together, at their places; None: all are independent.
Clusters = Sequence[Hashable] | None


def clustered_variance(values: Sequence[float], clusters: Clusters = None) -> tuple[float, int]:
    """The squared standard error of a mean, and the number of clusters that it was estimated from.

    Values of one cluster (the repeats of one task) are not independent. The error is clustered (Miller 2024, "Adding
    Error Bars to Evals", arXiv:2411.00640, section 2.2), with the correction G / (G - 1) for G clusters: clusters of
    one value give the error of independent values.

    Args:
        values: At least two.
        clusters: The cluster of each; None: they are independent, as those of only one cluster are.
    """
    mean, sums = fmean(values), dict[Hashable, float]()
    if clusters is None or len(set(clusters)) == 1:
        clusters = range(len(values))
    for cluster, value in zip(clusters, values, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    groups = len(sums)
    return groups / (groups - 1) * math.fsum(each * each for each in sums.values()) / len(values) ** 2, groups


def welch_interval(
    first: Sequence[float],
    second: Sequence[float],
    level: float = 0.95,
    clusters: tuple[Clusters, Clusters] = (None, None),
) -> tuple[float, float] | None:
    """A confidence interval for the mean of `second` minus the mean of `first`.

    Args:
        first, second: Independent values, each sample about normally distributed.
        level: The share of many such intervals that holds the true difference.
        clusters: The clusters of the first and of the second.

    Returns:
        None if a sample has fewer than two values: one value says nothing about chance.
    """
    if min(len(first), len(second)) < 2:
        return None
    difference = fmean(second) - fmean(first)
    (ours, our_groups), (theirs, their_groups) = map(clustered_variance, (first, second), clusters)
    total = ours + theirs
    if total == 0:
        return difference, difference
    shares = ours**2 / (our_groups - 1) + theirs**2 / (their_groups - 1)
    reach = t_quantile(0.5 + level / 2, total**2 / shares) * math.sqrt(total)
    return difference - reach, difference + reach


def t_quantile(share: float, freedom: float) -> float:
    """The value that Student's t stays below with a probability of `share`.

    Args:
        share: From 0.5 to below 1.
        freedom: Degrees of freedom, at least 1; need not be a whole number.
    """
    if not 0.5 <= share < 1 or freedom < 1:
        raise ValueError(f"share {share} must be in [0.5, 1) and freedom {freedom} at least 1")
    # With t = sqrt(freedom) * tan(angle) the density becomes cos(angle) ** (freedom - 1), on a bounded range.
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        width = middle / _STEPS
        heights: list[float] = [math.cos(width * number) ** (freedom - 1) for number in range(_STEPS + 1)]
        area = width / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
        if constant * area < share - 0.5:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)
