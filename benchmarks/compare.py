"""Compare two measurements: ratios with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from openenv._statistics import welch_interval
from openenv.errors import UsageError

from .result import Result

NO_DIFFERENCE = "no difference shown"
_FASTER, _SMALLER = ("faster", "slower"), ("smaller", "larger")
# Verdicts if the figure of the second file is below, and above, the figure of the first.
_VERDICTS = {
    "steps_per_second": _FASTER[::-1],
    "p50": _FASTER,
    "p99": _FASTER,
    "server_us_per_step": _FASTER,
    "client_us_per_step": _FASTER,
    "kib_per_session": _SMALLER,
    "total_p50": _FASTER,
    "total_p99": _FASTER,
    "requests_per_second": _FASTER[::-1],
}


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """One figure of two measurements.

    Attributes:
        case: Name of the case in the files; empty if they have only one.
        figure: Name of the figure in the files.
        first, second: Means.
        ratio: Ratio of the geometric means, second by first.
        low, high: 95 % confidence interval of the ratio; None if a file has only one trial.
        verdict: `faster` (the second), `slower`, `smaller`, `larger`, or `no difference shown`.
    """

    case: str
    figure: str
    first: float
    second: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str


def compare(first: Result, second: Result) -> list[FigureComparison]:
    """All figures that both files have.

    Welch's interval bounds the difference of the logarithms. So the interval of a ratio extends by the same factor up
    and down, and swapping the files inverts it.

    Raises:
        UsageError: The files cannot be compared: kinds or workloads differ, or they have no batch in common.
    """
    _check(first, second)
    return [
        _comparison(case, figure, ours, theirs)
        for case, trials in first.cases.items()
        if case in second.cases
        for figure in _VERDICTS
        if (ours := _values(trials, figure)) and (theirs := _values(second.cases[case], figure))
    ]


def _check(first: Result, second: Result) -> None:
    if first.kind != second.kind:
        raise UsageError(
            f"{first.path} is of `bench {first.kind}` and {second.path} of `bench {second.kind}`: "
            "give two files of the same kind"
        )
    different = [name for name in first.workload if not _same(first.workload[name], second.workload.get(name))]
    if different:
        both = "; ".join(f"{name} {first.workload[name]!r} and {second.workload.get(name)!r}" for name in different)
        raise UsageError(f"{first.path} and {second.path} have different workloads: {both}; measure both alike")
    if not first.cases.keys() & second.cases.keys():
        raise UsageError(
            f"{first.path} and {second.path} have no batch in common: "
            f"{_names(first.cases)} and {_names(second.cases)}; measure both with the same grid"
        )


def _same(first: Any, second: Any) -> bool:
    # None: the server at a URL is unknown, and may serve the same.
    return first is None or second is None or first == second


def _names(cases: Iterable[str]) -> str:
    return ", ".join(f"({case})" for case in cases)


def _values(trials: Sequence[Mapping[str, Any]], figure: str) -> list[float]:
    """The measured values of a figure. Values that are not positive were too small to measure."""
    values = (trial.get(figure) for trial in trials)
    return [value for value in values if isinstance(value, (int, float)) and 0 < value < math.inf]


def _comparison(case: str, figure: str, ours: Sequence[float], theirs: Sequence[float]) -> FigureComparison:
    logs = [math.log(value) for value in ours], [math.log(value) for value in theirs]
    interval = welch_interval(*logs)
    low, high = (math.exp(interval[0]), math.exp(interval[1])) if interval else (None, None)
    return FigureComparison(
        case=case,
        figure=figure,
        first=fmean(ours),
        second=fmean(theirs),
        ratio=math.exp(fmean(logs[1]) - fmean(logs[0])),
        low=low,
        high=high,
        verdict=_verdict(figure, low, high),
    )


def _verdict(figure: str, low: float | None, high: float | None) -> str:
    below, above = _VERDICTS[figure]
    if high is not None and high < 1:
        return below
    return above if low is not None and low > 1 else NO_DIFFERENCE
