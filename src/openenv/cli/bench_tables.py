"""Tables of these commands in a terminal (rich)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..bench.sandbox import JobSummary

_PHASES = ("scheduling", "running", "total")


def job_table(summaries: Sequence[JobSummary]) -> Table:
    """One line a batch: how many succeeded, and how long what took."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("workload")
    names = ("at\nonce", "jobs", "success\n%", "wall\ns")
    quantiles = [f"{phase}\nP50 / P95\ns" for phase in _PHASES]
    for name in (*names, *quantiles, "jobs\n/min", "average\npeak\nRSS MB"):
        table.add_column(name, justify="right")
    for summary in summaries:
        colour = "green" if summary.successful == summary.jobs else "red"
        spreads = [(getattr(summary, f"{phase}_p50"), getattr(summary, f"{phase}_p95")) for phase in _PHASES]
        table.add_row(
            summary.workload,
            str(summary.concurrency),
            str(summary.jobs),
            f"[{colour}]{100 * summary.success_rate:.0f}[/{colour}]",
            f"{summary.wall_s:.1f}",
            *(" / ".join(map(_seconds, spread)) for spread in spreads),
            f"{summary.jobs_per_minute:.1f}",
            "-" if summary.average_peak_rss_mb is None else f"{summary.average_peak_rss_mb:,.0f}",
        )
    return table


def stage_table(summaries: Sequence[JobSummary]) -> Table:
    """One line a batch: when its first job ran, when all were done, and how long memory took."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("workload")
    for name in ("at once", "first running s", "all done s", "allocation mean s"):
        table.add_column(name, justify="right")
    for summary in summaries:
        stages = (summary.first_running_s, summary.all_done_s, summary.allocation_mean_s)
        table.add_row(summary.workload, str(summary.concurrency), *map(_seconds, stages))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
