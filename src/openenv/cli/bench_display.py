"""How measurements look in a terminal, and in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from ..bench.batch import BatchSummary
    from ..bench.steps import StepCost


# Seconds between two lines in a log.
LOG_PERIOD_S = 2.0
# Columns of a log or file, where there is no terminal to ask.
LOG_WIDTH = 110


class Display:
    """What is going on: live bars in a terminal, a line now and then anywhere else. Writes to stderr."""

    def __init__(self) -> None:
        self._console = _console(stderr=True)
        self._bars = Progress(
            TextColumn("  {task.description:<9}"),
            BarColumn(bar_width=36),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._label = ""
        self._line = ""
        self._written = ""
        self._at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._finish()
        # Where it has not started, it would leave an empty line.
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Something else begins."""
        self._finish()
        self._console.print(f"[dim]·[/dim] {text}", soft_wrap=True)

    def show(self, label: str, phases: Mapping[str, tuple[int, int]], note: str = "") -> None:
        """How far something is.

        Args:
            label: What; another one than before starts new bars.
            phases: By name, how much of it is done, of how much.
            note: What else there is to say.
        """
        if label != self._label:
            self._finish()
            self._label, self._at = label, time.monotonic()
        progress = ", ".join(f"{name} {done:,}/{total:,}" for name, (done, total) in phases.items())
        self._line = f"  {label}: {progress}" + (f", {note}" if note else "")
        if self._console.is_terminal:
            for number, (name, (done, total)) in enumerate(phases.items()):
                if name not in self._tasks:
                    self._tasks[name] = self._bars.add_task(name, total=total, note="")
                self._bars.update(self._tasks[name], completed=done, note="" if number else note)
        elif time.monotonic() - self._at >= LOG_PERIOD_S:
            self._write()

    def _finish(self) -> None:
        """What was under way has ended: its last line stays."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()
        if self._line != self._written:
            self._write()
        self._label = ""

    def _write(self) -> None:
        self._console.print(self._line, soft_wrap=True)
        self._written, self._at = self._line, time.monotonic()


def stdout() -> Console:
    """Where results go."""
    return _console(stderr=False)


def milliseconds(seconds: float | None) -> str:
    """Three significant digits, and no more than a tenth of a microsecond."""
    if seconds is None:
        return "-"
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def scale_table(summaries: Sequence[BatchSummary]) -> Table:
    """One line a batch. Latencies are those of whole requests."""
    table = Table()
    for name in ("sessions", "wait\ns", "rep.", "success\n%", "P50\nms", "P95\nms", "P99\nms"):
        table.add_column(name, justify="right")
    for name in ("wall\ns", "sessions\nper s", "under way\non average", "server\nprocesses"):
        table.add_column(name, justify="right")
    for summary in summaries:
        colour = "green" if not summary.failed else "red"
        table.add_row(
            f"{summary.num_requests:,}",
            f"{summary.wait_seconds:g}",
            str(summary.repetition),
            f"[{colour}]{100 * summary.successful / summary.num_requests:.2f}[/{colour}]",
            *(milliseconds(value) for value in (summary.total_p50, summary.total_p95, summary.total_p99)),
            f"{summary.total_wall_time:.2f}",
            f"{summary.requests_per_second:,.0f}",
            f"{summary.effective_concurrency:,.0f}",
            str(summary.unique_pids),
        )
    return table


def step_table(cost: StepCost, floor: StepCost | None = None) -> Table:
    """What a step costs, one number a line; with a floor, that of the empty server and the ratio beside it."""
    table = Table(show_header=floor is not None)
    table.add_column()
    for name in ("", *(("empty server", "ratio") if floor else ())):
        table.add_column(name, justify="right")
    table.add_row("sessions", f"{cost.sessions:,}")
    table.add_row("steps", f"{cost.steps:,}")
    table.add_row("episodes", f"{cost.resets:,}")
    table.add_row("seconds", f"{cost.seconds:.2f}")
    for label, figure, form in FIGURES:
        value, least = getattr(cost, figure), getattr(floor, figure, None)
        ratio = f"{value / least:.2f}" if value is not None and least else "-"
        table.add_row(label, form(value), *((form(least), ratio) if floor else ()))
    return table


def _microseconds(value: float | None) -> str:
    return "not known (--serve, or --server-pid)" if value is None else f"{value:.1f} us"


# Label, figure of a `StepCost`, how to write it.
FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("steps per second", "steps_per_second", lambda value: f"{value:,.0f}"),
    ("latency P50", "p50", lambda value: f"{milliseconds(value)} ms"),
    ("latency P99", "p99", lambda value: f"{milliseconds(value)} ms"),
    ("server CPU per step", "server_us_per_step", _microseconds),
    ("client CPU per step", "client_us_per_step", _microseconds),
    ("both together", "us_per_step", lambda value: "-" if value is None else _microseconds(value)),
    ("memory per session", "kib_per_session", lambda value: "-" if value is None else f"{value:.1f} KiB"),
)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    return console
