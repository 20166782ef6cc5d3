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
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..bench.row import Mode
from ..errors import UsageError
from .bench_display import Display, demo_table, scale_table, stdout, step_table

if TYPE_CHECKING:
    from ..bench.crew import Counts
    from ..bench.episode import Batch
    from ..bench.served import ServedTarget

__all__ = ["app", "demo", "scale", "steps"]

app = typer.Typer(help="Measure an environment server.", no_args_is_help=True)

T = TypeVar("T")

_URL = typer.Option(help="Address of a running server.", show_default=False)
_SERVE = typer.Option(help="Serve this, as `openenv serve` would, for the measurement.", show_default=False)
_WORKERS = typer.Option(min=1, help="Worker processes, with --serve.")
_PROCESSES = typer.Option(min=1, help="Processes of the load, each with its share of the sessions.")
# Room for sessions whose close is still under way.
SPARE_SESSIONS = 64


@app.command()
def scale(
    url: Annotated[str | None, _URL] = None,
    serve: Annotated[str | None, _SERVE] = None,
    requests_grid: Annotated[str, typer.Option(help="Sessions at once, as 32,128,512.")] = "32,128,512",
    wait_grid: Annotated[str, typer.Option(help="Seconds a step shall take, as 0.1,1.0.")] = "1.0",
    reps: Annotated[int, typer.Option(min=1, help="Repetitions of each batch.")] = 3,
    mode: Annotated[
        Mode, typer.Option(help="A session over WebSocket, or one POST /reset and one POST /step.")
    ] = Mode.WS,
    output_dir: Annotated[Path, typer.Option(help="Where the results are written.")] = Path("out/scale"),
    workers: Annotated[int, _WORKERS] = 1,
    processes: Annotated[int, _PROCESSES] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds for each of connect, reset and step.")] = 120.0,
    server_cores: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of the server's machine, if it is another one.", show_default=False),
    ] = None,
) -> None:
    """How many sessions at once a server carries.

    Each session connects, resets, steps once (the action is {"wait_seconds": W}) and closes; all of a batch begin
    together. Writes raw.jsonl, summary.csv, pictures and report.html. Requests that fail are part of the result; the
    exit code is 1 if none succeeded.

    [bold]Example[/bold]

        openenv bench scale --serve benchmark --workers 2 --requests-grid 256,1024,4096 --processes 2
    """
    from ..bench.scale import Grid, check_grid, measure_scale
    from ..bench.served import probe

    grid = Grid(
        requests=_numbers(requests_grid, int, "--requests-grid"),
        waits=_numbers(wait_grid, float, "--wait-grid"),
        reps=reps,
        mode=mode,
        timeout_s=timeout,
        processes=processes,
    )
    _one_server(url, serve)
    check_grid(grid)
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        display = stack.enter_context(Display())
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
    console = stdout()
    console.print(scale_table(result.summaries))
    console.print("\n".join(result.verdicts()))
    for (kind, message), count in result.errors.most_common(5):
        console.print(f"{count:,} x {kind}: {message}", style="red", markup=False)
    console.print(f"written: {output_dir}/report.html, summary.csv, raw.jsonl", markup=False)
    if not any(summary.successful for summary in result.summaries):
        raise typer.Exit(1)


@app.command()
def steps(
    url: Annotated[str | None, _URL] = None,
    serve: Annotated[str | None, _SERVE] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that step at the same time.")] = 64,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to measure for.")] = 5.0,
    action: Annotated[str, typer.Option(help="What each step does, as JSON.")] = "{}",
    server_pid: Annotated[
        list[int] | None,
        typer.Option(help="With --url: process of the server, for its CPU time.", show_default=False),
    ] = None,
    workers: Annotated[int, _WORKERS] = 1,
    processes: Annotated[int, _PROCESSES] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What a step costs, in time and in CPU of both sides.

    Every session steps again as soon as it is answered. CPU time is read from the operating system, so it means
    the same whatever else the machine does.

    [bold]Example[/bold]

        openenv bench steps --serve gymnasium:CartPole-v1 --action '{"action": 1}'
    """
    from ..bench.closed_loop import Loop, measure_steps
    from ..bench.procfs import cpu_seconds, process_tree
    from ..bench.served import probe

    what = _action(action)
    _one_server(url, serve)
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        display = stack.enter_context(Display())
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
        stdout().print(step_table(cost))
    for error, count in cost.errors.items():
        print(f"{count} session(s) failed: {error}", file=sys.stderr)
    if cost.failed:
        raise typer.Exit(1)


@app.command()
def demo(
    output_dir: Annotated[Path, typer.Option(help="Where the results are written.")] = Path("out/demo"),
    sessions: Annotated[int, typer.Option(min=1, help="Sessions of the benchmark environment at once.")] = 1024,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each game.")] = 200,
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions that play at the same time.")] = 64,
) -> None:
    """Serves the benchmark environment and two games, drives them, and tells what it saw. Under a minute."""
    from ..bench.demo import Demo, check_demo, run_demo

    plan = Demo(sessions, episodes, concurrency, output_dir)
    check_demo(plan)
    began = time.monotonic()
    with _ended_in_order(), Display() as display:
        workloads = run_demo(plan, display.say, partial(_show_workload, display))
    console = stdout()
    console.print(demo_table(workloads))
    console.print(
        f"{os.cpu_count()} cores, {time.monotonic() - began:.0f} s; "
        f"written: {output_dir}/report.html, summary.csv, raw.jsonl",
        markup=False,
    )
    failed = sum(workload.failed for workload in workloads)
    if failed:
        console.print(f"{failed:,} failed: {output_dir}/raw.jsonl says why", style="red", markup=False)
        raise typer.Exit(1)


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
