"""Report and figures of `openenv bench demo`."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv._plots import COLOURS, canvas, colours, file_of
from openenv._statistics import Quantiles
from openenv.bench.batch import error_counts, write_rows
from openenv.bench.machine import machine

from .games import PHASES, DemoSummary, DemoWorkload
from .report import HtmlReport, ReportTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Bars of a histogram; up to so many different whole numbers, each gets its own.
BINS = 24
FEW = 12
# A logarithmic axis has no place for 0.
LEAST_MS = 0.001


def phase_curves(latencies: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """How latencies are distributed: a panel a phase, a line a workload.

    Args:
        latencies: Seconds, by phase and workload.
    """
    with canvas(1, len(latencies), share_y=True, panel_width=3.4) as (figure, panels):
        for axes, (phase, workloads) in zip(panels, latencies.items(), strict=True):
            for colour, (name, values) in zip(colours(), workloads.items(), strict=False):
                ordered = sorted(max(LEAST_MS, 1000 * value) for value in values)
                shares = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
                axes.step(ordered, shares, where="post", color=colour, label=name)
            _decades(axes, [1000 * value for values in workloads.values() for value in values] or [1.0])
            axes.set_ylim(0, 101)
            axes.set_xlabel("milliseconds")
            axes.set_title(phase.capitalize())
        panels[0].set_ylabel("% took at most so long")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))
        return file_of(figure)


def outcome_histograms(outcomes: Mapping[str, tuple[Sequence[float], Sequence[int]]]) -> bytes:
    """Returns and lengths of episodes: a row of panels a workload.

    Args:
        outcomes: By workload, the returns and the lengths of its episodes.
    """
    with canvas(len(outcomes), 2) as (figure, panels):
        for number, (name, (returns, lengths)) in enumerate(outcomes.items()):
            for axes, colour, what, values in (
                (panels[2 * number], COLOURS[0], "return", returns),
                (panels[2 * number + 1], COLOURS[2], "length in steps", lengths),
            ):
                _histogram(axes, values, colour)
                axes.set_xlabel(what)
                axes.set_ylabel("episodes")
                mean = f", mean {sum(values) / len(values):.3g}" if values else ""
                axes.set_title(f"{name}: {what}{mean}")
                axes.grid(visible=False, axis="x")
        return file_of(figure)


def open_sessions(spans: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """How many sessions were open over time: a panel a workload.

    Args:
        spans: By workload, from when to when each session was open. Seconds, any origin.
    """
    with canvas(1, len(spans)) as (figure, panels):
        for axes, colour, (name, sessions) in zip(panels, colours(), spans.items(), strict=False):
            changes = sorted([(begin, 1) for begin, _ in sessions] + [(end, -1) for _, end in sessions])
            origin = changes[0][0] if changes else 0.0
            times, counts, count = [0.0], [0], 0
            for moment, change in changes:
                count += change
                times.append(moment - origin)
                counts.append(count)
            axes.step(times, counts, where="post", color=colour)
            axes.fill_between(times, counts, step="post", color=colour, alpha=0.15)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("seconds")
            axes.set_title(name)
        panels[0].set_ylabel("open sessions")
        return file_of(figure)


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis that begins and ends with a power of ten, in plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    low, high = (math.log10(max(LEAST_MS, value)) for value in (min(values), max(values)))
    low, high = math.floor(low), math.ceil(high)
    axes.set_xlim(10.0**low, 10.0 ** max(high, low + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _histogram(axes: Axes, values: Sequence[float], colour: str) -> None:
    """One bar a value where there are few, as the outcomes of a card game."""
    low, high = math.floor(min(values, default=0)), math.ceil(max(values, default=0))
    few = high - low < FEW and all(value == int(value) for value in values)
    bins: Any = [number - 0.5 for number in range(low, high + 2)] if few else BINS
    axes.hist(values, bins=bins, color=colour, edgecolor="white", linewidth=0.6)
    if few:
        axes.set_xticks(range(low, high + 1))


_NOTE = (
    "Latencies are milliseconds, by nearest rank over what succeeded. Total is connect, reset and step together; "
    "of a game it is a whole episode. Memory is what the server's resident memory grew by for each open session."
)


def write_demo(output_dir: Path, workloads: Sequence[DemoWorkload]) -> None:
    """Writes `raw.jsonl`, `summary.csv` and `report.html`.

    Args:
        output_dir: Where to; it exists.
        workloads: The benchmark environment, then games.
    """
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for workload in workloads:
            write_rows(raw, workload.rows)
    with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        quantiles = [f"{phase}_{name}" for phase in PHASES for name in Quantiles._fields]
        table = csv.writer(file, lineterminator="\n")
        table.writerow([entry.name for entry in fields(DemoSummary)] + quantiles)
        for workload in workloads:
            spreads = [value for part in workload.spreads().values() for value in part]
            cells = [*asdict(workload.line()).values(), *spreads]
            table.writerow([round(cell, 6) if isinstance(cell, float) else cell for cell in cells])
    (output_dir / "report.html").write_text(demo_report(workloads).html(), encoding="utf-8")


def demo_report(workloads: Sequence[DemoWorkload]) -> HtmlReport:
    """The report, for the same workloads."""
    benchmark, *games = workloads
    failed = sum(workload.failed for workload in workloads)
    return HtmlReport(
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


def _outcomes(workload: DemoWorkload) -> tuple[list[float], list[int]]:
    ended = [row for row in workload.rows if row.episode_return is not None]
    return [row.episode_return or 0.0 for row in ended], [row.steps for row in ended]


def _figures_table(workloads: Sequence[DemoWorkload]) -> ReportTable:
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
    return ReportTable("The workloads", header, rows, _NOTE)


def _error_table(workloads: Sequence[DemoWorkload]) -> ReportTable:
    rows = [
        [workload.name, kind, message, f"{count:,}"]
        for workload in workloads
        for (kind, message), count in error_counts(workload.rows).most_common(10)
    ]
    return ReportTable("Failures", ["workload", "error", "message", "requests"], rows)
