"""How a server looks in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .terminal import plural
from .top import Interval, Scrape

_PHASES = ("queue", "construct", "reset", "step", "serialize", "send")
_STATE_STYLES = {"live": "green", "executing": "cyan", "detached": "yellow", "starting": "", "closing": "dim"}
_BLAME_STYLES = {"client": "yellow", "environment": "red", "infrastructure": "magenta"}
# An event loop that is late by that much is felt by every session.
LAG_S = 0.1
# From so many columns on there is room for all facts of a session.
WIDE = 100
MOST_ERRORS = 6


def picture(
    url: str, interval: Interval, sessions: Sequence[Mapping[str, Any]] | None, width: int, height: int
) -> RenderableType:
    """Everything there is to see.

    Args:
        url: Of the server.
        interval: What has happened.
        sessions: What `GET /sessions` said; None where it did not.
        width: Columns of the terminal.
        height: Its lines; sessions get what the rest leaves of them.
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
    table.add_row("calls", _calls(now))
    lags = now.by("event_loop_lag_seconds", "worker")
    worst = max(lags.values(), default=0.0)
    lag = Text.assemble((_duration(worst), "bold red" if worst >= LAG_S else "bold"))
    if len(lags) > 1:
        lag.append(f"   worker {max(lags, key=lambda worker: lags[worker])}", "dim")
    table.add_row("loop lag", lag)
    return table


def _calls(now: Scrape) -> Text:
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
    parts = [Text(f"{running:,} executing")]
    if waiting:
        parts.append(Text(f"{waiting:,} wait for their turn", "yellow"))
    if stuck:
        parts.append(Text(f"{stuck:,} stuck", "bold red"))
    parts.append(Text(f"{made:,} constructing", "" if made else "dim"))
    parts.append(Text(plural(connections, "connection"), "dim"))
    return Text("   ").join(parts)


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
    """Three digits at most, in the unit that suits it."""
    if seconds is None:
        return "-"
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, least in units.items() if seconds >= least), "us")
    value = seconds / units[unit]
    return f"{value:.0f} {unit}" if value >= 10 or not value else f"{value:.1f} {unit}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
