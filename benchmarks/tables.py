"""Tables of the commands in a terminal (rich)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from openenv.cli.display import FIGURES, milliseconds

from .demo_report import figures_table
from .turns import OPENENV, median_of, ratios

if TYPE_CHECKING:
    from .compare import FigureComparison
    from .frames import FrameMemory
    from .games import DemoWorkload
    from .sandbox import JobSummary
    from .turns import TurnRate

_PHASES = ("scheduling", "running", "total")


def job_table(summaries: Sequence[JobSummary]) -> Table:
    """A table of batches: successful jobs, and durations of their phases."""
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
    """A table of batches: start of the first job, end of the last, and time to allocate memory."""
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


def turns_table(rates: Mapping[str, Sequence[TurnRate]], step_bytes: int | None = None) -> Table:
    """A table of systems that were measured in turns.

    Args:
        rates: The results by system.
        step_bytes: Size of one observation, for a column with megabytes per second.
    """
    table = Table()
    names = ["", "steps/s", *(["MB/s"] if step_bytes else []), "server us", "client us", f"{OPENENV} by it"]
    for name in names:
        table.add_column(name, justify="right" if name else "left")
    by_it = ratios(rates)
    for system, rounds in rates.items():
        steps, server = median_of(rounds, "steps_per_second"), median_of(rounds, "server_us_per_step")
        client = median_of(rounds, "client_us_per_step")
        table.add_row(
            system,
            _figure(steps),
            *([_figure(steps * step_bytes / 1e6)] if steps is not None and step_bytes else []),
            _figure(server),
            _figure(client),
            f"{by_it[system]:.3g}",
        )
    return table


def memory_line(memory: FrameMemory) -> str:
    """The memory of both sides, in a sentence."""
    base, server, client, arrays = (
        _figure(size / 1e6) for size in (memory.server_base, memory.server, memory.client, memory.arrays)
    )
    return (
        f"resident memory: the server has {base} MB and grows by {server} MB, the client by {client} MB; together "
        f"{_figure(memory.by_arrays)} times the observations' {arrays} MB"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def demo_table(workloads: Sequence[DemoWorkload]) -> Table:
    """The table of the demo, with one row for each figure."""
    figures = figures_table(workloads)
    table = Table(title="times in milliseconds", title_style="dim", title_justify="left")
    for number, name in enumerate(figures.header):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for name, *cells in figures.rows:
        if name in _SECTIONS:
            table.add_section()
        table.add_row(name, *cells)
    return table


# Figures that begin a section of the table.
_SECTIONS = {"connect P50", "reset P50", "step P50", "total P50", "sessions/s"}


def compare_table(comparisons: Iterable[FigureComparison]) -> Table:
    """A table of figures, below the names of their cases if there are several."""
    labels = {figure: (label, form) for label, figure, form in (*FIGURES, *_BATCH_FIGURES)}
    table = Table()
    table.add_column(no_wrap=True)
    for name in ("A", "B", "B / A", "95 % interval", "B is"):
        table.add_column(name, justify="right")
    case = ""
    for found in comparisons:
        if found.case != case:
            case = found.case
            table.add_section()
            table.add_row(f"[bold]{case}[/bold]")
        label, form = labels[found.figure]
        interval = "-" if found.low is None else f"{found.low:.3f} to {found.high:.3f}"
        colour = _COLOURS.get(found.verdict, "dim")
        verdict = f"[{colour}]{found.verdict}[/{colour}]"
        table.add_row(label, form(found.first), form(found.second), f"{found.ratio:.3f}", interval, verdict)
    return table


_BATCH_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("total P50", "total_p50", lambda value: f"{milliseconds(value)} ms"),
    ("total P99", "total_p99", lambda value: f"{milliseconds(value)} ms"),
    ("sessions per second", "requests_per_second", lambda value: f"{value:,.0f}"),
)
_COLOURS = {"faster": "green", "smaller": "green", "slower": "red", "larger": "red"}
