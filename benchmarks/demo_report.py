"""Report and figures of `openenv bench demo`."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from openenv._plots import COLOURS, canvas
from openenv._statistics import Quantiles
from openenv.bench.batch import error_counts, write_rows
from openenv.bench.machine import machine

from .games import PHASES, DemoSummary, DemoWorkload
from .report import HtmlReport, ReportChart, ReportTable, themed_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Bars of a histogram. Up to FEW different whole numbers get one bar each.
BINS = 24
FEW = 12
# A logarithmic axis cannot show 0.
LEAST_MS = 0.001
# Width of a chart in inches: a desktop shows two side by side, and on a phone the letters of one are readable.
WIDTH = 4.6


def latency_curves(latencies: Mapping[str, Sequence[float]]) -> bytes:
    """The distribution of latencies, with a line for each workload.

    Args:
        latencies: Latencies in seconds, by workload.
    """
    with canvas(1, 1, panel_width=WIDTH) as (figure, (axes,)):
        for colour, (name, values) in zip(cycle(COLOURS), latencies.items(), strict=False):
            ordered = sorted(max(LEAST_MS, 1000 * value) for value in values)
            shares = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
            axes.step(ordered, shares, where="post", color=colour, label=name)
        _decades(axes, [1000 * value for values in latencies.values() for value in values] or [1.0])
        axes.set_ylim(0, 101)
        axes.set_xlabel("milliseconds")
        axes.set_ylabel("% done within this time")
        _legend(axes)
        return themed_svg(figure)


def outcome_histogram(values: Sequence[float], name: str, colour: str) -> bytes:
    """A histogram of the outcomes of episodes.

    Args:
        values: One value for each episode.
        name: Label of the horizontal axis.
        colour: Colour of the bars.
    """
    with canvas(1, 1, panel_width=WIDTH) as (figure, (axes,)):
        _histogram(axes, values, colour)
        axes.set_xlabel(name)
        axes.set_ylabel("episodes")
        axes.grid(visible=False, axis="x")
        return themed_svg(figure)


def open_sessions(spans: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """The number of open sessions over time, with a line for each workload.

    Args:
        spans: Times of the open and the close of each session, by workload. Seconds, with any origin.
    """
    with canvas(1, 1, panel_width=WIDTH) as (figure, (axes,)):
        for colour, (name, sessions) in zip(cycle(COLOURS), spans.items(), strict=False):
            changes = sorted([(begin, 1) for begin, _ in sessions] + [(end, -1) for _, end in sessions])
            origin = changes[0][0] if changes else 0.0
            times, counts, count = [0.0], [0], 0
            for moment, change in changes:
                count += change
                times.append(moment - origin)
                counts.append(count)
            axes.step(times, counts, where="post", color=colour, label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds")
        axes.set_ylabel("open sessions")
        _legend(axes)
        return themed_svg(figure)


def _legend(axes: Axes) -> None:
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """Sets a logarithmic axis from one power of ten to another, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    low, high = (math.log10(max(LEAST_MS, value)) for value in (min(values), max(values)))
    low, high = math.floor(low), math.ceil(high)
    axes.set_xlim(10.0**low, 10.0 ** max(high, low + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _histogram(axes: Axes, values: Sequence[float], colour: str) -> None:
    """Draws one bar for each value if there are few, as for the outcomes of a card game."""
    low, high = math.floor(min(values, default=0)), math.ceil(max(values, default=0))
    few = high - low < FEW and all(value == int(value) for value in values)
    bins: Any = [number - 0.5 for number in range(low, high + 2)] if few else BINS
    axes.hist(values, bins=bins, color=colour, edgecolor="#ffffff", linewidth=0.6)
    if few:
        axes.set_xticks(range(low, high + 1))


_NOTE = "One column for each workload. Times are in milliseconds. The terms are explained below the charts."
_PLURALS = {
    "connect": "connections",
    "reset": "resets",
    "step": "steps",
    "total": "sessions and episodes",
}
_QUESTIONS = {
    "connect": "How long did a connection take?",
    "reset": "How long did a reset take?",
    "step": "How long did a step take?",
    "total": "How long did a whole session or episode take?",
}
_TERMS = {
    "workload": "An environment under load: the benchmark environment, then games of Gymnasium.",
    "benchmark environment": "An environment without computation: a step waits for the seconds in its action.",
    "worker": "A process of the server. The benchmark environment has one for each core, a game has one.",
    "session": "One environment in use by one client, from its connection to its close.",
    "episode": "From a reset to the step that ends the game. A session plays episodes one after the other.",
    "success": "The share of sessions (benchmark) or episodes (games) without an error.",
    "connect": "Time from the request for a session to its start.",
    "reset": "Time from the request for the first observation of an episode to its arrival.",
    "step": "Time from sending an action to the arrival of its observation and reward.",
    "total": "Benchmark: connect, reset and step together. Game: a whole episode.",
    "P50, P95, P99": "50, 95 and 99 of 100 took at most this time. P50 is the median; P99 shows the slowest.",
    "sessions/s": "Sessions, divided by the seconds from the first connection to the last close.",
    "steps/s": "Steps of all sessions, divided by the same seconds.",
    "KB/session": "Growth of the server's memory (resident set) for each open session; 1 KB is 1,024 bytes.",
    "random policy": "The player of the games. It chooses each action at random, and does not learn.",
    "return": "The sum of all rewards of an episode.",
    "length": "The number of steps of an episode.",
}


def write_demo(output_dir: Path, workloads: Sequence[DemoWorkload]) -> None:
    """Writes `raw.jsonl`, `summary.csv` and `report.html`.

    Args:
        output_dir: An existing folder.
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
    """The report of the demo.

    Args:
        workloads: The benchmark environment, then games.
    """
    benchmark, *games = workloads
    failed = sum(workload.failed for workload in workloads)
    return HtmlReport(
        title="openenv demo",
        lead=(
            f"{len(benchmark.rows):,} sessions of the {benchmark.name} environment at once, each with one step of "
            f"{benchmark.rows[0].wait_requested or 0:g} s, and "
            + " and ".join(f"{len(w.rows):,} episodes of {w.name} over {w.sessions} sessions" for w in games)
            + (": all succeeded." if not failed else f": {failed:,} failed.")
        ),
        facts=machine(),
        tables=[figures_table(workloads), _error_table(workloads)],
        charts=list(_charts(workloads)),
        terms=_TERMS,
    )


def _charts(workloads: Sequence[DemoWorkload]) -> Iterator[ReportChart]:
    for phase, question in _QUESTIONS.items():
        medians = (f"{w.name} {_milliseconds(w.spreads()[phase].p50)} ms" for w in workloads)
        answer = f"Half of the {_PLURALS[phase]} took at most: {', '.join(medians)}."
        yield ReportChart(question, latency_curves({w.name: w.latencies(phase) for w in workloads}), answer)
    most = (f"{w.name} {w.sessions:,} in {w.wall_s:.1f} s" for w in workloads)
    spans = {w.name: w.spans for w in workloads}
    yield ReportChart("How many sessions were open?", open_sessions(spans), f"Opened: {', '.join(most)}.")
    for colour, workload in zip(COLOURS[1:], workloads[1:], strict=False):
        ended = [row for row in workload.rows if row.episode_return is not None]
        for question, name, values in (
            (f"What return did {workload.name} give?", "return", [row.episode_return or 0.0 for row in ended]),
            (f"How long was an episode of {workload.name}?", "length in steps", [float(row.steps) for row in ended]),
        ):
            mean = f"{fmean(values):,.3g}" if values else "-"
            answer = f"Mean of {len(values):,} episodes by a random policy: {mean}."
            yield ReportChart(question, outcome_histogram(values, name, colour), answer)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.1f}"


def figures_table(workloads: Sequence[DemoWorkload]) -> ReportTable:
    """A table with one row for each figure, since a phone shows three columns, but not sixteen."""
    lines, spreads = [w.line() for w in workloads], [w.spreads() for w in workloads]
    rows = [["success %", *(f"{100 * line.success_rate:.2f}" for line in lines)]]
    rows += [
        [f"{phase} {name.upper()}", *(_milliseconds(getattr(each[phase], name)) for each in spreads)]
        for phase in PHASES
        for name in ("p50", "p95", "p99")
    ]
    rows += [
        ["sessions/s", *(f"{line.sessions_per_second:,.0f}" for line in lines)],
        ["steps/s", *(f"{line.steps_per_second:,.0f}" for line in lines)],
        ["KB/session", *(f"{line.memory_per_session_kb:,.0f}" for line in lines)],
    ]
    return ReportTable("Measurements", ["workload", *(w.name for w in workloads)], rows, _NOTE)


def _error_table(workloads: Sequence[DemoWorkload]) -> ReportTable:
    rows = [
        [workload.name, kind, message, f"{count:,}"]
        for workload in workloads
        for (kind, message), count in error_counts(workload.rows).most_common(10)
    ]
    return ReportTable("Failures", ["workload", "error", "message", "requests"], rows)
