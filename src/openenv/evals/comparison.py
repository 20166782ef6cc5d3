"""Two evaluations side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..bench.welch import welch_interval
from ..errors import UsageError
from .report import Report, successes_of
from .statistics import mean_interval, share_interval

__all__ = ["NO_DIFFERENCE", "Comparison", "compare"]

NO_DIFFERENCE = "no difference shown"
PAIRED, WELCH, NEWCOMBE = "paired", "Welch", "Newcombe"
# Fewer pairs than these say less than the two samples as such do.
FEWEST_PAIRS = 2

# Of a figure, by the keys of its cases.
Values = Mapping[tuple[Any, ...], float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of two evaluations.

    Attributes:
        figure: `return`, `success` or `length`.
        method: `paired`: of cases (seeds, or tasks) that both have, each with its counterpart; `Welch`, and of
            shares `Newcombe`: of all.
        first_count, second_count: How many values of each are compared; of pairs both are their number.
        first, second: Means of those.
        difference: Second minus first.
        low, high: 95 % confidence interval of the difference; None: there are too few values.
        verdict: `higher` (the second), `lower`, or `no difference shown`.
    """

    figure: str
    method: str
    first_count: int
    second_count: int
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    verdict: str


def compare(first: Report, second: Report) -> list[Comparison]:
    """The difference of every figure that both have.

    Where both have a case, its two values belong together: the difference of pairs has Student's interval, which is
    not widened by how cases differ. Runs without two cases in common are compared as independent samples, by Welch's
    interval. Shares of successes have Newcombe's in both cases. Episodes without a score are left out, as they are of
    the means.

    Raises:
        UsageError: They are of different environments or splits, or have no score in common.
    """
    _check(first, second)
    threshold = second.about.success_at if first.about.success_at is None else first.about.success_at
    figures: dict[str, Callable[[Report], Values]] = {
        "return": _scores,
        "success": lambda report: {**successes_of(report.episodes, threshold)},
        "length": _lengths,
    }
    found = [_compared(name, values(first), values(second)) for name, values in figures.items()]
    comparisons = [comparison for comparison in found if comparison is not None]
    if not any(comparison.figure == "return" for comparison in comparisons):
        raise UsageError(f"nothing can be compared: {_scored(first)} of A and {_scored(second)} of B have a return")
    return comparisons


def _check(first: Report, second: Report) -> None:
    for what, ours, theirs in (
        ("environment", first.about.environment, second.about.environment),
        ("split", first.about.split, second.about.split),
    ):
        if ours != theirs and None not in (ours, theirs):
            raise UsageError(f"A is of the {what} {ours!r}, and B of {theirs!r}: evaluate both on the same one")
    if (first.about.split is None) != (second.about.split is None):
        raise UsageError("one of them played tasks of a split, and the other seeds: evaluate both in the same way")


def _scores(report: Report) -> Values:
    return {episode.key: episode.score for episode in report.episodes if episode.score is not None}


def _lengths(report: Report) -> Values:
    return {episode.key: float(episode.length) for episode in report.episodes if episode.failure is None}


def _compared(figure: str, ours: Values, theirs: Values) -> Comparison | None:
    if not ours or not theirs:
        return None
    common = [key for key in ours if key in theirs]
    paired = len(common) >= FEWEST_PAIRS
    first = [ours[key] for key in common] if paired else list(ours.values())
    second = [theirs[key] for key in common] if paired else list(theirs.values())
    shares = figure == "success"
    low, high = _interval(first, second, paired, shares) or (None, None)
    return Comparison(
        figure=figure,
        method=PAIRED if paired else NEWCOMBE if shares else WELCH,
        first_count=len(first),
        second_count=len(second),
        first=fmean(first),
        second=fmean(second),
        difference=fmean(second) - fmean(first),
        low=low,
        high=high,
        verdict=_verdict(low, high),
    )


def _interval(
    first: Sequence[float], second: Sequence[float], paired: bool, shares: bool
) -> tuple[float, float] | None:
    if shares:
        return share_interval([value > 0 for value in first], [value > 0 for value in second], paired)
    if paired:
        return mean_interval([there - here for here, there in zip(first, second, strict=True)])
    return welch_interval(first, second)


def _verdict(low: float | None, high: float | None) -> str:
    if low is not None and low > 0:
        return "higher"
    return "lower" if high is not None and high < 0 else NO_DIFFERENCE


def _scored(report: Report) -> str:
    return f"{report.summary.scored} of {len(report.episodes)} episodes"
