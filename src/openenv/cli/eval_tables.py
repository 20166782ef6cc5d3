"""What evaluations look like, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import click

from .replay_view import tame

if TYPE_CHECKING:
    from ..evals.comparison import Comparison
    from ..evals.episode import Episode
    from ..evals.report import Report, Summary
    from ..evals.statistics import Sample

__all__ = ["comparison_lines", "progress_note", "summary_lines"]

_FAULTS = {
    "policy": "by the policy's fault",
    "environment": "by the environment's fault",
    "infrastructure": "by a fault of the infrastructure",
}
MESSAGE_WIDTH = 200


def progress_note(episodes: Sequence[Episode], planned: int) -> str:
    """What is found so far."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    failed = sum(episode.failure is not None for episode in episodes)
    said = [f"{len(episodes)} of {planned}"]
    said += [f"mean return {fmean(scores):.4g}"] if scores else []
    return ", ".join([*said, *([f"{failed} failed"] if failed else [])])


def summary_lines(report: Report) -> list[str]:
    """A report, for people."""
    about, summary = report.about, report.summary
    name = tame(about.environment or about.target)
    head = f"{about.policy} in {name}: {_episodes(summary)} in {about.seconds:.1f} s"
    lines = [click.style(head, bold=True), *_rows(_score_rows(report))]
    if not summary.scored:
        lines.append("  no episode has a return")
    if summary.ends.get("max_steps"):
        lines.append(f"  {summary.ends['max_steps']} were cut short after {about.max_steps} steps (--max-steps)")
    if summary.repeated:
        lines.append(f"  {summary.repeated} were played again, after failures of the infrastructure")
    lines += _failure_lines(summary)
    if about.record is not None:
        lines.append(f"  recorded in {about.record}")
    return lines


def comparison_lines(found: Sequence[Comparison], first: Report, second: Report) -> list[str]:
    """Two reports side by side, for people."""
    head = ["", "A", "B", "B - A", "95 % interval", "", "compared"]
    rows = [
        [
            comparison.figure,
            _number(comparison.first),
            _number(comparison.second),
            f"{comparison.difference:+.4g}",
            _interval(comparison.low, comparison.high),
            _colored(comparison.verdict),
            _compared(comparison),
        ]
        for comparison in found
    ]
    lines = [f"A: {_what(first)}", f"B: {_what(second)}", *_rows([head, *rows])]
    for option in ("max_steps", "success_at"):
        ours, theirs = getattr(first.about, option), getattr(second.about, option)
        if ours != theirs:
            lines.append(f"  they were not played alike: --{option.replace('_', '-')} {ours} in A, {theirs} in B")
    for name, report in (("A", first), ("B", second)):
        if report.summary.failed:
            lines.append(f"  {report.summary.failed} of {name}'s episodes failed and are in none of these figures")
    return lines


def _episodes(summary: Summary) -> str:
    if summary.played < summary.planned:
        return f"interrupted after {summary.played} of {summary.planned} episodes"
    return f"{summary.played} episode{'' if summary.played == 1 else 's'}"


def _score_rows(report: Report) -> list[list[str]]:
    summary = report.summary
    rows = [["", "mean", "95 % interval", "least", "median", "most", "episodes"]]
    rows += [
        _sample_row(name, sample)
        for name, sample in (("return", summary.returns), ("length", summary.lengths))
        if sample
    ]
    share = summary.success
    if share is not None:
        rows.append(
            ["success", f"{share.share:.1%}", f"{share.low:.1%} to {share.high:.1%}", "", "", "", str(share.count)]
        )
    return rows if len(rows) > 1 else []


def _sample_row(name: str, sample: Sample) -> list[str]:
    return [
        name,
        _number(sample.mean),
        _interval(sample.low, sample.high),
        *map(_number, (sample.least, sample.median, sample.most)),
        str(sample.count),
    ]


def _failure_lines(summary: Summary) -> list[str]:
    lines = []
    for blame, counts in summary.failures.items():
        total = sum(counts.values())
        lines.append(click.style(f"  {total} failed {_FAULTS[blame]}, and have no score:", fg="red"))
        for error, count in counts.items():
            message = " ".join(summary.examples.get(error, "").split())
            lines.append(tame(f"    {count} x {error}: {message[:MESSAGE_WIDTH]}"))  # of anybody's environment
    return lines


def _what(report: Report) -> str:
    about = report.about
    return tame(f"{about.policy} in {about.environment or about.target}, {_episodes(report.summary)}")


def _compared(comparison: Comparison) -> str:
    if comparison.method == "paired":
        return f"{comparison.first_count} pairs"
    return f"{comparison.first_count} and {comparison.second_count} ({comparison.method})"


def _colored(verdict: str) -> str:
    colors = {"higher": "green", "lower": "red"}
    return click.style(verdict, fg=colors[verdict]) if verdict in colors else verdict


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns: names to the left, all else to the right."""
    if not rows:
        return []
    widths = [max(len(click.unstyle(row[column])) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            _padded(cell, width, column == 0) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _padded(cell: str, width: int, left: bool) -> str:
    space = " " * (width - len(click.unstyle(cell)))
    return cell + space if left else space + cell
