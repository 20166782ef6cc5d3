"""What the demo writes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from .demo_figures import open_sessions, outcome_histograms, phase_curves
from .machine import machine
from .quantiles import Spread
from .report import Report, Table
from .row import write_rows
from .summary import error_counts
from .workload import PHASES, Line, Workload

__all__ = ["demo_report", "write_demo"]

_NOTE = (
    "Latencies are milliseconds, by nearest rank over what succeeded. Total is connect, reset and step together; "
    "of a game it is a whole episode. Memory is what the server's resident memory grew by for each open session."
)


def write_demo(output_dir: Path, workloads: Sequence[Workload]) -> None:
    """Writes `raw.jsonl`, `summary.csv` and `report.html`.

    Args:
        output_dir: Where to; it exists.
        workloads: The benchmark environment, then games.
    """
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for workload in workloads:
            write_rows(raw, workload.rows)
    with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        quantiles = [f"{phase}_{name}" for phase in PHASES for name in Spread._fields]
        table = csv.writer(file, lineterminator="\n")
        table.writerow([entry.name for entry in fields(Line)] + quantiles)
        for workload in workloads:
            spreads = [value for part in workload.spreads().values() for value in part]
            cells = [*asdict(workload.line()).values(), *spreads]
            table.writerow([round(cell, 6) if isinstance(cell, float) else cell for cell in cells])
    (output_dir / "report.html").write_text(demo_report(workloads).html(), encoding="utf-8")


def demo_report(workloads: Sequence[Workload]) -> Report:
    """The report, for the same workloads."""
    benchmark, *games = workloads
    failed = sum(workload.failed for workload in workloads)
    return Report(
        title="openenv demo",
        lead=(
            f"{len(benchmark.rows):,} sessions of the {benchmark.name} environment at once, each with one step, and "
            + " and ".join(f"{len(w.rows):,} episodes of {w.name} over {w.sessions} sessions" for w in games)
            + (": all succeeded." if not failed else f": {failed:,} failed.")
        ),
        facts=machine(),
        tables=[_figures_table(workloads), _error_table(workloads)],
        pictures={
            "How long each phase took": phase_curves(
                {phase: {w.name: w.latencies(phase) for w in workloads} for phase in PHASES}
            ),
            "Sessions over time": open_sessions({w.name: w.spans for w in workloads}),
            "What the episodes came to (random policy)": outcome_histograms({w.name: _outcomes(w) for w in games}),
        },
    )


def _outcomes(workload: Workload) -> tuple[list[float], list[int]]:
    ended = [row for row in workload.rows if row.episode_return is not None]
    return [row.episode_return or 0.0 for row in ended], [row.steps for row in ended]


def _figures_table(workloads: Sequence[Workload]) -> Table:
    header = ["workload", "success %", *(f"{p} {q}" for p in PHASES for q in ("P50", "P95", "P99"))]
    header += ["sessions/s", "steps/s", "KB/session"]
    rows = []
    for workload in workloads:
        line = workload.line()
        quantiles = [q for part in workload.spreads().values() for q in (part.p50, part.p95, part.p99)]
        rows.append(
            [
                workload.name,
                f"{100 * line.success_rate:.2f}",
                *("-" if q is None else f"{1000 * q:,.1f}" for q in quantiles),
                f"{line.sessions_per_second:,.0f}",
                f"{line.steps_per_second:,.0f}",
                f"{line.memory_per_session_kb:,.0f}",
            ]
        )
    return Table("The workloads", header, rows, _NOTE)


def _error_table(workloads: Sequence[Workload]) -> Table:
    rows = [
        [workload.name, kind, message, f"{count:,}"]
        for workload in workloads
        for (kind, message), count in error_counts(workload.rows).most_common(10)
    ]
    return Table("Failures", ["workload", "error", "message", "requests"], rows)
