"""Formats measurements, and the state of a server, for a terminal and for a log. (Extra `bench`.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .terminal import plural

if TYPE_CHECKING:
    from ..bench.batch import BatchSummary
    from ..bench.steps import StepCost
    from .top import Interval


# Seconds between two lines in a log.
LOG_PERIOD_S = 2.0
# Columns of a log or file, which have no terminal width.
LOG_WIDTH = 110


class Display:
    """Progress on stderr: live bars in a terminal, a line at intervals elsewhere."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
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
        # If the display has not started, stopping it would leave an empty line.
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Prints a new heading."""
        self._finish()
        self._print(f"[dim]·[/dim] {text}")

    def show(self, label: str, phases: Mapping[str, tuple[int, int]], note: str = "") -> None:
        """Shows the progress.

        Args:
            label: The current step; a new one starts new bars.
            phases: Done and total units of each, by name.
            note: Further facts.
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
        """Ends the current bars: their last line stays."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()
        if self._line != self._written:
            self._write()
        self._label = ""

    def _write(self) -> None:
        self._print(self._line)
        self._written, self._at = self._line, time.monotonic()

    def _print(self, text: str) -> None:
        """Prints text: wrapped in a terminal, one line in a log."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)


def milliseconds(seconds: float | None) -> str:
    """Three significant digits, and no more than a tenth of a microsecond."""
    if seconds is None:
        return "-"
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def scale_table(summaries: Sequence[BatchSummary]) -> Table:
    """One row per batch. Latencies are those of whole requests."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name in ("sessions", "wait\ns", "rep.", "success\n%", "P50\nms", "P95\nms", "P99\nms"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("wall\ns", "sessions\nper s", "under\nway", "server\nprocs."):
        table.add_column(name, justify="right", no_wrap=True)
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
    """The cost of a step, one number per row; with a floor, also the empty server's and the ratio."""
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
    return "unknown (give --serve or --server-pid)" if value is None else f"{value:.1f} us"


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


def console(stderr: bool = False) -> Console:
    """The console of stdout, or of stderr. Without a terminal, it is wide enough for the tables."""
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal:
        found.width = max(found.width, LOG_WIDTH)
    return found


_PHASES = ("queue", "construct", "reset", "step", "serialize", "send")
_STATE_STYLES = {"live": "green", "executing": "cyan", "detached": "yellow", "starting": "", "closing": "dim"}
_BLAME_STYLES = {"client": "yellow", "environment": "red", "infrastructure": "magenta"}
# Delay of the event loop, in seconds, that affects every session.
LAG_S = 0.1
# Columns that fit all facts of a session.
WIDE = 100
MOST_ERRORS = 6


def picture(
    url: str, interval: Interval, sessions: Sequence[Mapping[str, Any]] | None, width: int, height: int
) -> RenderableType:
    """The whole display.

    Args:
        url: URL of the server.
        interval: The latest changes.
        sessions: Answer of `GET /sessions`; None without one.
        width: Columns of the terminal.
        height: Its lines; sessions get those that are left.
    """
    now = interval.now
    version = next(iter(now.by("build_info", "version")), "")
    workers, restarts = int(now.value("workers")), int(now.value("worker_restarts_total"))
    head = Text.assemble((f"openenv {version}", "bold"), " · ", url, " · ", plural(workers, "worker"))
    if restarts:
        head.append(f" ({plural(restarts, 'restart')})", "yellow")
    parts: list[RenderableType] = [head, Text(), _facts(interval), Text(), _phases(interval)]
    errors = _errors(interval)
    if errors is not None:
        parts += [Text(), errors]
    if sessions:
        above = 10 + len(_PHASES) + (0 if errors is None else 2 + errors.row_count)
        room = height - above - 3
        if room > 0:
            parts += [Text(), _sessions(sessions, room, width)]
    return Padding(Group(*parts), (0, 1))


def absence(url: str, reason: str) -> RenderableType:
    """A server that does not answer."""
    text = Text.assemble((url, "bold"), "\n\n", (reason, "red"), "\n", ("trying again; Ctrl-C ends this", "dim"))
    return Padding(text, (0, 1))


def _facts(interval: Interval) -> Table:
    now = interval.now
    held, limit, queued = (int(now.value(name)) for name in ("slots_held", "slots_limit", "queue_length"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    full = f"{held:,} of {limit:,}", "bold red" if limit and held >= limit else "bold"
    table.add_row("slots", Text.assemble(full, (f"   {queued:,} wait for one", "yellow" if queued else "dim")))
    counts = now.by("sessions", "state")
    states = (
        Text(f"{int(counts.get(state, 0)):,} {state}", style if counts.get(state) else "dim")
        for state, style in _STATE_STYLES.items()
    )
    table.add_row("sessions", Text("   ").join(states))
    steps, resets = interval.timing("step"), interval.timing("reset")
    rates = Text.assemble((f"{steps.per_second:,.0f}", "bold"), f" steps/s   {resets.per_second:,.0f} resets/s")
    table.add_row("rates", rates)
    running, waiting, stuck, made, connections = (
        int(now.value(name))
        for name in (
            "calls_executing",
            "calls_waiting",
            "stuck_threads",
            "environments_constructing",
            "connections",
        )
    )
    calls = [Text(f"{running:,} executing")]
    if waiting:
        calls.append(Text(f"{waiting:,} wait for their turn", "yellow"))
    if stuck:
        calls.append(Text(f"{stuck:,} stuck", "bold red"))
    calls.append(Text(f"{made:,} constructing", "" if made else "dim"))
    calls.append(Text(plural(connections, "connection"), "dim"))
    table.add_row("calls", Text("   ").join(calls))
    lags = now.by("event_loop_lag_seconds", "worker")
    worst = max(lags.values(), default=0.0)
    lag = Text.assemble((_duration(worst), "bold red" if worst >= LAG_S else "bold"))
    if len(lags) > 1:
        lag.append(f"   worker {max(lags, key=lambda worker: lags[worker])}", "dim")
    table.add_row("loop lag", lag)
    return table


def _phases(interval: Interval) -> Table:
    table = _plain_table()
    table.add_column("phase", no_wrap=True, min_width=9)
    for name in ("per s", "mean", "P50", "P99"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    for phase in _PHASES:
        timing = interval.timing(phase)
        idle = timing.mean is None
        rate = "-" if idle else f"{timing.per_second:,.0f}" if timing.per_second >= 10 else f"{timing.per_second:.2g}"
        times = (_duration(seconds) for seconds in (timing.mean, timing.p50, timing.p99))
        table.add_row(phase, rate, *times, style="dim" if idle else None)
    return table


def _errors(interval: Interval) -> Table | None:
    totals, recent = interval.now.errors(), interval.errors()
    if not totals:
        return None
    table = _plain_table()
    table.add_column("errors", no_wrap=True, min_width=9)
    table.add_column("blame", no_wrap=True)
    table.add_column("per s", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    ranked = sorted(totals, key=lambda error: (-recent[error], -totals[error]))
    for error in ranked[:MOST_ERRORS]:
        name, blame = error
        rate = recent[error] / interval.seconds
        style = _BLAME_STYLES.get(blame, "")
        table.add_row(Text(name, style), blame, f"{rate:,.1f}" if rate else "-", f"{int(totals[error]):,}")
    rest = len(ranked) - MOST_ERRORS
    if rest > 0:
        table.add_row(Text(f"and {rest} more", "dim"))
    return table


def _sessions(sessions: Sequence[Mapping[str, Any]], room: int, width: int) -> Table:
    table = _plain_table()
    table.add_column("session", no_wrap=True, overflow="ellipsis", min_width=9, max_width=32)
    table.add_column("state", no_wrap=True)
    for name in ("idle s", "age s", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    more = ("worker", "peer") if width >= WIDE else ()
    for name in more:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    ranked = sorted(sessions, key=lambda session: -_number(session.get("idle_s")))
    for session in ranked[:room]:
        state = str(session.get("state", "-"))
        table.add_row(
            Text(str(session.get("id", "-"))),
            Text(state, _STATE_STYLES.get(state, "")),
            f"{_number(session.get('idle_s')):,.0f}",
            f"{_number(session.get('age_s')):,.0f}",
            f"{_number(session.get('steps')):,.0f}",
            *(Text(str(session.get(name) or "-")) for name in more),
        )
    if len(ranked) > room:
        table.add_row(Text(f"and {len(ranked) - room:,} more", "dim"))
    return table


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _duration(seconds: float | None) -> str:
    """At most three digits, with the unit."""
    if seconds is None:
        return "-"
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, least in units.items() if seconds >= least), "us")
    value = seconds / units[unit]
    return f"{value:.0f} {unit}" if value >= 10 or not value else f"{value:.1f} {unit}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
