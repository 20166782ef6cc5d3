"""Confidence intervals of means, shares and their differences.

Means have Student's interval (Student, 1908): exact for normal values, and good for the mean of some dozens of others
by the central limit theorem. Shares have Wilson's score interval (Wilson, 1927), which stays within 0 and 1 and keeps
its coverage for few values, and for shares of 0 and 1. Differences of pairs have Student's interval of the
differences, those of independent samples have Welch's (1947). Both have zero width if all values are equal, which is
common for shares of few episodes; differences of shares have Newcombe's intervals (1998), which build on Wilson's.

Clustered values have Student's t with G - 1 degrees of freedom for G clusters (`clustered_variance`). A clustered
share has Wilson's interval for the effective number of values (Korn and Graubard, 1998), which is the number of
clusters if all values are equal.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, median, stdev

from pydantic import BaseModel, ConfigDict

from .._statistics import Clusters, clustered_variance, t_quantile

LEVEL = 0.95

_quantile = lru_cache(t_quantile)


class EvalModel(BaseModel):
    """A part of a report. Fields that are not declared are errors."""

    model_config = ConfigDict(extra="forbid")


class Sample(EvalModel):
    """Summary of a sample.

    Attributes:
        count: Number of values.
        mean, std, least, median, most: Statistics of the values; `std` is None for one value.
        low, high: Confidence interval of the mean, 95 % (Student's t, clustered); None for one value.
    """

    model_config = ConfigDict(frozen=True)

    count: int
    mean: float
    std: float | None
    low: float | None
    high: float | None
    least: float
    median: float
    most: float


class Share(EvalModel):
    """The share of hits in a sample.

    Attributes:
        count: Number of values.
        hits: Number of hits.
        share: Hits divided by count.
        low, high: Confidence interval of the share, 95 % (Wilson's, clustered).
    """

    model_config = ConfigDict(frozen=True)

    count: int
    hits: int
    share: float
    low: float
    high: float


class PassAtK(EvalModel):
    """The chance that at least one of `k` episodes of a task succeeds, as a mean over tasks.

    Attributes:
        k: Number of episodes.
        tasks: Number of tasks with at least `k` episodes.
        share: Mean of the tasks' estimates.
        low, high: Confidence interval of the mean over tasks, 95 %; None for one task.
    """

    model_config = ConfigDict(frozen=True)

    k: int
    tasks: int
    share: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float], clusters: Clusters = None) -> tuple[float, float] | None:
    """Student's 95 % confidence interval of the mean; None for fewer than two values, which have no variance.

    Args:
        values: The values.
        clusters: Cluster of each value; None for independent values. Those of a single cluster count as independent.
    """
    if len(values) < 2:
        return None
    square, groups = clustered_variance(values, clusters)
    reach = _quantile(0.5 + LEVEL / 2, groups - 1) * math.sqrt(square)
    return fmean(values) - reach, fmean(values) + reach


def sample_of(values: Sequence[float], clusters: Clusters = None) -> Sample | None:
    """Summarises values; None if there are no values."""
    if not values:
        return None
    low, high = mean_interval(values, clusters) or (None, None)
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


def share_interval(
    first: Sequence[bool],
    second: Sequence[bool],
    paired: bool = False,
    clusters: tuple[Clusters, Clusters] = (None, None),
) -> tuple[float, float] | None:
    """Newcombe's 95 % confidence interval of the second share minus the first; None if a sample is empty.

    Args:
        first, second: Whether each value is a hit.
        paired: Whether values at the same index are pairs, so that both samples have the same length.
        clusters: The clusters of the first sample and of the second.
    """
    ours, theirs = clustered_share(first, clusters[0]), clustered_share(second, clusters[1])
    if ours is None or theirs is None:
        return None
    alike = _correlation(first, second, clusters[0]) if paired else 0.0
    difference = theirs.share - ours.share
    down = _reach(theirs.share - theirs.low, ours.high - ours.share, alike)
    up = _reach(theirs.high - theirs.share, ours.share - ours.low, alike)
    return difference - down, difference + up


def share_of(hits: int, count: int) -> Share | None:
    """A share with Wilson's 95 % interval; None for a count of 0."""
    if not count:
        return None
    low, high = _wilson(hits / count, count, NormalDist().inv_cdf(0.5 + LEVEL / 2))
    return Share(count=count, hits=hits, share=hits / count, low=low, high=high)


def clustered_share(hits: Sequence[bool], clusters: Clusters) -> Share | None:
    """A share with Wilson's interval for clusters; None for an empty sample.

    Args:
        hits: Whether each value is a hit.
        clusters: Cluster of each value; None for independent values. Those of a single cluster count as independent.
    """
    if clusters is None or len(set(clusters)) in {1, len(hits)}:
        return share_of(sum(hits), len(hits))
    low, high = _share_limits(hits, clusters, len(hits))
    return Share(count=len(hits), hits=sum(hits), share=fmean(hits), low=low, high=high)


def pass_at(k: int, tasks: Sequence[tuple[int, int]]) -> PassAtK | None:
    """pass@k by the unbiased estimator of Chen et al. (2021), "Evaluating Large Language Models Trained on Code":
    1 - C(n - c, k) / C(n, k) for a task with c successes in n episodes.

    Args:
        k: Number of episodes, at least 1.
        tasks: Number of successes and of episodes per task. A task with fewer than k episodes has no estimate.

    Returns:
        None if no task has k episodes.
    """
    found = [1 - math.comb(count - hits, k) / math.comb(count, k) for hits, count in tasks if count >= k]
    if not found:
        return None
    most = sum(count for _, count in tasks if count >= k)
    low, high = _share_limits(found, range(len(found)), most) if len(found) > 1 else (None, None)
    return PassAtK(k=k, tasks=len(found), share=fmean(found), low=low, high=high)


def _share_limits(values: Sequence[float], clusters: Sequence[Hashable], most: int) -> tuple[float, float]:
    """Wilson's interval for values from 0 to 1 in two clusters or more.

    Args:
        values: The values.
        clusters: Cluster of each value.
        most: Upper bound of the effective number of values.
    """
    share = fmean(values)
    square, groups = clustered_variance(values, clusters)
    size = float(groups)
    if 0 < share < 1:
        size = min(float(most), share * (1 - share) / square) if square else float(most)
    return _wilson(share, size, _quantile(0.5 + LEVEL / 2, groups - 1))


def _wilson(share: float, count: float, z: float) -> tuple[float, float]:
    square = z * z / count
    middle = (share + square / 2) / (1 + square)
    reach = z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    # For shares of 0 and 1, the bound is exactly 0 or 1 but for rounding errors.
    low = 0.0 if share == 0 else max(0.0, middle - reach)
    high = 1.0 if share == 1 else min(1.0, middle + reach)
    return low, high


def _reach(one: float, other: float, alike: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * alike * one * other + other * other))


def _correlation(first: Sequence[bool], second: Sequence[bool], clusters: Clusters) -> float:
    """The phi coefficient, with Newcombe's continuity correction if positive; for clusters, that of their sums."""
    if clusters is not None and 1 < len(set(clusters)) < len(first):
        # From the variances of both and of their difference.
        apart = [there - here for here, there in zip(first, second, strict=True)]
        one, two, both = (clustered_variance(values, clusters)[0] for values in (first, second, apart))
        return max(-1.0, min(1.0, (one + two - both) / (2 * math.sqrt(one * two)))) if one * two else 0.0
    count, ours, theirs = len(first), sum(first), sum(second)
    spread = ours * (count - ours) * theirs * (count - theirs)
    if not spread:
        return 0.0
    both = sum(one and other for one, other in zip(first, second, strict=True))
    together = both * count - ours * theirs
    return (max(0.0, together - count / 2) if together > 0 else together) / math.sqrt(spread)
