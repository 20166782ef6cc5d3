"""`openenv bench`: measure an environment server."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from ..bench.crew import Counts
    from ..bench.episode import Batch
    from ..bench.served import ServedTarget
    from .bench_display import Display

__all__ = ["app"]

T = TypeVar("T")
_COUNT = click.IntRange(min=1)
_FOLDER = click.Path(file_okay=False, path_type=Path)
# Room for sessions whose close is still under way.
SPARE_SESSIONS = 64


@click.group("bench", short_help="Measure an environment server.")
def app() -> None:
    """Measure an environment server."""


_url = click.option("--url", help="Address of a running server.")
_serve = click.option("--serve", metavar="TARGET", help="Serve this for the measurement, as `openenv serve` would.")
_workers = click.option(
    "--workers", type=_COUNT, default=1, show_default=True, help="Worker processes, with --serve."
)
_processes = click.option(
    "--processes", type=_COUNT, default=1, show_default=True, help="Processes of the load, each with its share."
)


@app.command(short_help="How many sessions at once a server carries.")
@_url
@_serve
@click.option("--requests-grid", default="32,128,512", show_default=True, help="Sessions at once.")
@click.option("--wait-grid", default="1.0", show_default=True, help="Seconds a step shall take, as 0.1,1.0.")
@click.option("--reps", type=_COUNT, default=3, show_default=True, help="Repetitions of each batch.")
@click.option(
    "--mode",
    type=click.Choice(["ws", "http"]),
    default="ws",
    show_default=True,
    help="A session over WebSocket, or one POST /reset and one POST /step.",
)
@click.option("--output-dir", type=_FOLDER, default="out/scale", show_default=True, help="Where the results go.")
@_workers
@_processes
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for each of connect, reset and step.")
@click.option("--server-cores", type=_COUNT, help="Cores of the server's machine, if it is another one.")
def scale(
    url: str | None,
    serve: str | None,
    requests_grid: str,
    wait_grid: str,
    reps: int,
    mode: str,
    output_dir: Path,
    workers: int,
    processes: int,
    timeout: float,
    server_cores: int | None,
) -> None:
    """Each session connects, resets, steps once (the action is {"wait_seconds": W}) and closes; all of a batch begin
    together. Writes raw.jsonl, summary.csv, pictures and report.html. Requests that fail are part of the result; the
    exit code is 1 if none succeeded.

    \b
    Example:
      openenv bench scale --serve benchmark --workers 2 --requests-grid 256,1024,4096 --processes 2
    """
    shown = _display()
    from ..bench.row import Mode
    from ..bench.scale import Grid, check_grid, measure_scale
    from ..bench.served import probe

    grid = Grid(
        requests=_numbers(requests_grid, int, "--requests-grid"),
        waits=_numbers(wait_grid, float, "--wait-grid"),
        reps=reps,
        mode=Mode(mode),
        timeout_s=timeout,
        processes=processes,
    )
    _one_server(url, serve)
    check_grid(grid)
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        display = stack.enter_context(shown.Display())
        settle: Callable[[], None] = lambda: None  # noqa: E731
        if serve is not None:
            server = _served(stack, display, serve, workers, max(grid.requests))
            url, settle = server.url, server.settle
        assert url is not None
        probe(url)
        result = measure_scale(
            grid,
            url,
            output_dir,
            served_by=f"{serve}, {workers} worker(s)" if serve else url,
            cores=server_cores,
            settle=settle,
            progress=partial(_show_batch, display),
        )
    console = shown.stdout()
    console.print(shown.scale_table(result.summaries))
    console.print("\n".join(result.verdicts()))
    for (kind, message), count in result.errors.most_common(5):
        console.print(f"{count:,} x {kind}: {message}", style="red", markup=False)
    console.print(f"written: {output_dir}/report.html, summary.csv, raw.jsonl", markup=False)
    if not any(summary.successful for summary in result.summaries):
        raise click.exceptions.Exit(1)


@app.command(short_help="What a step costs, in time and in CPU of both sides.")
@_url
@_serve
@click.option("--sessions", type=_COUNT, default=64, show_default=True, help="Sessions that step at the same time.")
@click.option(
    "--duration", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to measure for."
)
@click.option("--action", default="{}", show_default=True, help="What each step does, as JSON.")
@click.option("--server-pid", type=int, multiple=True, help="With --url: process of the server, for its CPU time.")
@_workers
@_processes
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def steps(
    url: str | None,
    serve: str | None,
    sessions: int,
    duration: float,
    action: str,
    server_pid: tuple[int, ...],
    workers: int,
    processes: int,
    as_json: bool,
) -> None:
    """Every session steps again as soon as it is answered. CPU time is read from the operating system, so it means
    the same whatever else the machine does.

    \b
    Example:
      openenv bench steps --serve gymnasium:CartPole-v1 --action '{"action": 1}'
    """
    shown = _display()
    from ..bench.closed_loop import Loop, measure_steps
    from ..bench.procfs import cpu_seconds, process_tree
    from ..bench.served import probe

    what = _action(action)
    _one_server(url, serve)
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        display = stack.enter_context(shown.Display())
        server_cpu: Callable[[], float] | None = None
        if serve is not None:
            server = _served(stack, display, serve, workers, sessions)
            url, server_cpu = server.url, server.cpu_seconds
        elif server_pid:
            process_tree(server_pid)  # says so now if there is no such process
            server_cpu = lambda: cpu_seconds(process_tree(server_pid))  # noqa: E731
        assert url is not None
        probe(url)
        display.say(f"{sessions:,} sessions step for {duration:g} s")
        cost = measure_steps(Loop(url, sessions, duration, what), processes, server_cpu)
    if as_json:
        print(json.dumps(asdict(cost)))
    else:
        shown.stdout().print(shown.step_table(cost))
    for error, count in cost.errors.items():
        print(f"{count} session(s) failed: {error}", file=sys.stderr)
    if cost.failed:
        raise click.exceptions.Exit(1)


@app.command(short_help="Serve, drive and measure on this machine, in under a minute.")
@click.option("--output-dir", type=_FOLDER, default="out/demo", show_default=True, help="Where the results go.")
@click.option("--sessions", type=_COUNT, default=1024, show_default=True, help="Benchmark sessions at once.")
@click.option("--episodes", type=_COUNT, default=200, show_default=True, help="Episodes of each game.")
@click.option("--concurrency", type=_COUNT, default=64, show_default=True, help="Sessions that play at once.")
def demo(output_dir: Path, sessions: int, episodes: int, concurrency: int) -> None:
    """Serves the benchmark environment and two games, drives them, and tells what it saw."""
    shown = _display()
    from ..bench.demo import Demo, check_demo, run_demo

    plan = Demo(sessions, episodes, concurrency, output_dir)
    check_demo(plan)
    began = time.monotonic()
    with _ended_in_order(), shown.Display() as display:
        workloads = run_demo(plan, display.say, partial(_show_workload, display))
    console = shown.stdout()
    console.print(shown.demo_table(workloads))
    console.print(
        f"{os.cpu_count()} cores, {time.monotonic() - began:.0f} s; "
        f"written: {output_dir}/report.html, summary.csv, raw.jsonl",
        markup=False,
    )
    failed = sum(workload.failed for workload in workloads)
    if failed:
        console.print(f"{failed:,} failed: {output_dir}/raw.jsonl says why", style="red", markup=False)
        raise click.exceptions.Exit(1)


def _display() -> ModuleType:
    try:
        from . import bench_display
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "rich", "bench") from None
    return bench_display


def _served(stack: ExitStack, display: Display, target: str, workers: int, sessions: int) -> ServedTarget:
    from ..bench.served import ServedTarget

    display.say(f"serving {target} with {workers} worker{'s' if workers > 1 else ''}")
    return stack.enter_context(ServedTarget(target, workers, max_sessions=sessions + SPARE_SESSIONS))


def _show_batch(display: Display, batch: Batch, repetition: int, counts: Counts) -> None:
    label = f"{batch.sessions:,} sessions, {batch.wait_seconds:g} s wait, repetition {repetition}"
    display.show(label, _phases(batch.sessions, counts), _failures(counts))


def _show_workload(display: Display, workload: str, total: int, counts: Counts) -> None:
    if workload == "benchmark":
        display.show(workload, _phases(total, counts), _failures(counts))
    else:
        note = ", ".join(filter(None, (f"{counts.steps:,} steps", _failures(counts))))
        display.show(workload, {"episodes": (counts.finished, total)}, note)


def _phases(total: int, counts: Counts) -> dict[str, tuple[int, int]]:
    done = {"connect": counts.connected, "reset": counts.reset, "step": counts.steps, "close": counts.closed}
    return {name: (count, total) for name, count in done.items()}


def _failures(counts: Counts) -> str:
    return f"{counts.failed:,} failed" if counts.failed else ""


def _one_server(url: str | None, serve: str | None) -> None:
    if (url is None) == (serve is None):
        raise UsageError("what shall be measured? give either --url of a running server, or --serve TARGET")


def _numbers(text: str, kind: Callable[[str], T], option: str) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} is {text!r}: it must be numbers with commas between them") from None


def _action(text: str) -> dict[str, Any]:
    try:
        action = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--action is no JSON: {error}") from None
    if not isinstance(action, dict):
        raise UsageError(f"--action is {text}: it must be a JSON object")
    return action


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: servers and load first."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
