"""`openenv bench`: measure an environment server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UsageError
from . import bench_options as options
from . import bench_options as places
from .bench_commands import compare, sandbox

if TYPE_CHECKING:
    from ..bench.batch import RequestBatch
    from ..bench.load import LoadCounts
    from ..bench.scale import Grid, LaunchPlan, ScaleResult
    from ..bench.steps import Metered, StepCost
    from .bench_display import Display


@click.command(short_help="What a step costs, in time and in CPU of both sides.")
@options.url_option
@options.serve_option
@click.option("--sessions", type=options.COUNT, default=64, show_default=True, help="Sessions that step at once.")
@click.option("--vector", type=options.COUNT, help="Instead: so many sessions of one vector client, a batch a step.")
@click.option(
    "--duration", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds of each trial."
)
@click.option("--action", default="{}", show_default=True, help="What each step does, as JSON.")
@click.option("--server-pid", type=int, multiple=True, help="With --url: process of the server, for its CPU time.")
@options.workers_option
@options.processes_option
@click.option("--trials", type=options.COUNT, default=1, show_default=True, help="How often to measure.")
@click.option("--floor", is_flag=True, help="Put the load on an empty server too, in turns, and tell the ratio.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for `openenv bench compare`.")
def steps(
    url: str | None,
    serve: str | None,
    sessions: int,
    vector: int | None,
    duration: float,
    action: str,
    server_pid: tuple[int, ...],
    workers: int,
    processes: int | None,
    trials: int,
    floor: bool,
    as_json: bool,
) -> None:
    """Every session steps again as soon as it is answered. CPU time is read from the operating system, so it means
    the same whatever else the machine does. From 256 sessions on, so is the memory of a session.

    \b
    Examples:
      openenv bench steps --serve gymnasium:CartPole-v1 --action '{"action": 1}'
      openenv bench steps --serve benchmark --vector 256 --trials 5 --json > vector.json
    """
    shown = options.display_module()
    from .._tuning import raise_file_limit
    from ..bench.load import check_share, enough_processes
    from ..bench.machine import Processes
    from ..bench.result import steps_document
    from ..bench.served import probe
    from ..bench.steps import ClosedLoop, mean_cost, measure_trials

    what = _action(action)
    options.one_server(url, serve)
    total = vector or sessions
    load = processes or (1 if vector else enough_processes(total, raise_file_limit()))
    check_share(total, load, raise_file_limit())
    with ExitStack() as stack:
        stack.enter_context(options.ended_in_order())
        display = stack.enter_context(shown.Display())
        server: Metered | None = Processes(server_pid) if server_pid else None
        if serve is not None:
            server = served = options.served(stack, display, serve, workers, total)
            url = served.url
        assert url is not None
        probe(url)
        loop = ClosedLoop(url, total, duration, what, vector=vector is not None, connections=workers)
        found = measure_trials(loop, trials, load, server, floor=floor, stage=display.say)
    if as_json:
        by = options.served_by(serve, url, workers)
        print(json.dumps(steps_document(loop, options.command_line(), serve, by, found.server, found.floor)))
    else:
        floor_cost = mean_cost(found.floor) if found.floor else None
        shown.stdout().print(shown.step_table(mean_cost(found.server), floor_cost))
    _end(mean_cost(found.server))


def _end(cost: StepCost) -> None:
    """Tells failures; they are the exit code's business too."""
    for error, count in cost.errors.items():
        print(f"{count} session(s) failed: {error}", file=sys.stderr)
    if cost.failed:
        raise click.exceptions.Exit(1)


def _action(text: str) -> dict[str, Any]:
    try:
        action = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--action is no JSON: {error}") from None
    if not isinstance(action, dict):
        raise UsageError(f"--action is {text}: it must be a JSON object")
    return action


T = TypeVar("T")


@click.command(short_help="How many sessions at once a server carries.")
@options.url_option
@options.serve_option
@places.launch_options
@click.option("--requests-grid", default="32,128,512", show_default=True, help="Sessions at once.")
@click.option("--wait-grid", default="1.0", show_default=True, help="Seconds a step shall take, as 0.1,1.0.")
@click.option("--reps", type=options.COUNT, default=3, show_default=True, help="Repetitions of each batch.")
@click.option(
    "--mode",
    type=click.Choice(["ws", "http"]),
    default="ws",
    show_default=True,
    help="A session over WebSocket, or one POST /reset and one POST /step.",
)
@click.option(
    "--output-dir", type=options.FOLDER, default="out/scale", show_default=True, help="Where the results go."
)
@options.workers_option
@options.processes_option
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for each of connect, reset and step.")
@click.option("--server-cores", type=options.COUNT, help="Cores of the server's machine, if it is another one.")
@click.option(
    "--expected-hosts",
    type=options.COUNT,
    help="Fail (exit code 1) if fewer hosts than these had sessions.",
)
def scale(
    url: str | None,
    serve: str | None,
    place: places.LaunchOptions,
    requests_grid: str,
    wait_grid: str,
    reps: int,
    mode: str,
    output_dir: Path,
    workers: int,
    processes: int | None,
    timeout: float,
    server_cores: int | None,
    expected_hosts: int | None,
) -> None:
    """Each session connects, resets, steps once (the action is {"wait_seconds": W}) and closes; all of a batch begin
    together. Writes raw.jsonl, summary.csv, result.json (for `openenv bench compare`), pictures and report.html.
    Requests that fail are part of the result; the exit code is 1 if none succeeded.

    With --provider, servers are launched for the measurement, balanced, and removed after it, also when it fails or
    is interrupted. A server that asks for a key is given that of OPENENV_API_KEY.

    \b
    Examples:
      openenv bench scale --serve benchmark --workers 2 --requests-grid 1024,4096,16384
      openenv bench scale --provider swarm --image my-env:1 --replicas 4 --gateway envoy --expected-hosts 4
    """
    shown = options.display_module()
    from ..bench.batch import Mode
    from ..bench.scale import Grid, check_grid, measure_scale

    grid = Grid(
        requests=_numbers(requests_grid, int, "--requests-grid"),
        waits=_numbers(wait_grid, float, "--wait-grid"),
        reps=reps,
        mode=Mode(mode),
        timeout_s=timeout,
        processes=processes,
    )
    launching = place.launching(url, serve, workers, max(grid.requests, default=0) + options.SPARE_SESSIONS)
    check_grid(grid)
    _check_expected(grid, expected_hosts)
    with ExitStack() as stack:
        stack.enter_context(options.ended_in_order())
        display = stack.enter_context(shown.Display())
        served = _served(stack, display, launching, url, serve, workers, grid)
        result = measure_scale(
            grid,
            served.urls,
            output_dir,
            served_by=served.words,
            api_key=served.api_key,
            command=options.command_line(),
            target=served.target,
            cores=server_cores,
            settle=served.settle,
            progress=partial(_show_batch, display),
        )
    _tell(shown, result, output_dir)
    if not any(summary.successful for summary in result.summaries):
        raise click.exceptions.Exit(1)
    _judge(result, expected_hosts)


@dataclass(frozen=True, slots=True)
class _Served:
    """What is measured."""

    urls: Sequence[str]
    words: str
    target: str | None = None
    api_key: str | None = None
    settle: Callable[[], None] = lambda: None


def _served(
    stack: ExitStack,
    display: Display,
    launching: LaunchPlan | None,
    url: str | None,
    serve: str | None,
    workers: int,
    grid: Grid,
) -> _Served:
    """Has something to measure, until the stack is left."""
    from ..bench.scale import LaunchedServers
    from ..bench.served import probe
    from ..settings import ClientSettings

    if launching is not None:
        display.say(f"launching {launching.words}")
        launched = stack.enter_context(LaunchedServers(launching))
        target = launching.spec.target or launching.spec.image
        return _Served(launched.urls, launching.words, target, launched.api_key, launched.settle)
    if serve is not None:
        server = options.served(stack, display, serve, workers, max(grid.requests))
        probe(server.url)
        return _Served([server.url], options.served_by(serve, server.url, workers), serve, settle=server.settle)
    assert url is not None
    probe(url)
    return _Served([url], url, api_key=ClientSettings.read().api_key)


def _check_expected(grid: Grid, expected: int | None) -> None:
    """Raises `UsageError` where so many hosts cannot be reached by any batch."""
    if expected is not None and max(grid.requests) < expected:
        raise UsageError(
            f"{max(grid.requests)} sessions cannot reach {expected} hosts (--expected-hosts): raise --requests-grid"
        )


def _judge(result: ScaleResult, expected: int | None) -> None:
    """Ends the program with 1 where the load has not reached as many hosts as expected."""
    from ..bench.scale import too_few_hosts

    missing = None if expected is None else too_few_hosts(result.summaries, expected)
    if missing is not None:
        click.echo(f"Error: {missing} (--expected-hosts)", err=True)
        raise click.exceptions.Exit(1)


def _tell(shown: ModuleType, result: ScaleResult, output_dir: Path) -> None:
    console = shown.stdout()
    console.print(shown.scale_table(result.summaries))
    console.print("\n".join(result.verdicts()))
    for (kind, message), count in result.errors.most_common(5):
        console.print(f"{count:,} x {kind}: {message}", style="red", markup=False)
    console.print(f"written: {output_dir}/report.html, result.json, summary.csv, raw.jsonl", markup=False)


def _show_batch(display: Display, batch: RequestBatch, repetition: int, counts: LoadCounts) -> None:
    label = f"{batch.sessions:,} sessions, {batch.wait_seconds:g} s wait, repetition {repetition}"
    display.show(label, options.phases(batch.sessions, counts), options.failures(counts))


def _numbers(text: str, kind: Callable[[str], T], option: str) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} is {text!r}: it must be numbers with commas between them") from None


@click.group("bench", short_help="Measure an environment server.")
def app() -> None:
    """Measures environment servers: what a step costs, and how many sessions are carried at once.

    \b
    Examples:
      openenv bench demo
      openenv bench steps --serve echo
      openenv bench scale --serve benchmark --requests-grid 1024,4096
    """


app.add_command(scale)
app.add_command(steps)
app.add_command(compare)
app.add_command(sandbox)


@app.command(short_help="Serve, drive and measure on this machine, in under a minute.")
@click.option(
    "--output-dir", type=options.FOLDER, default="out/demo", show_default=True, help="Where the results go."
)
@click.option("--sessions", type=options.COUNT, default=1024, show_default=True, help="Benchmark sessions at once.")
@click.option("--episodes", type=options.COUNT, default=200, show_default=True, help="Episodes of each game.")
@click.option("--concurrency", type=options.COUNT, default=64, show_default=True, help="Sessions that play at once.")
def demo(output_dir: Path, sessions: int, episodes: int, concurrency: int) -> None:
    """Serves the benchmark environment and two games, drives them, and tells what it saw.

    \b
    Examples:
      openenv bench demo
      openenv bench demo --sessions 256 --output-dir out/small
    """
    shown = options.display_module()
    from ..bench.demo import Demo, check_demo, run_demo

    plan = Demo(sessions, episodes, concurrency, output_dir)
    check_demo(plan)
    began = time.monotonic()
    with options.ended_in_order(), shown.Display() as display:
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


def _show_workload(display: Display, workload: str, total: int, counts: LoadCounts) -> None:
    if workload == "benchmark":
        display.show(workload, options.phases(total, counts), options.failures(counts))
    else:
        note = ", ".join(filter(None, (f"{counts.steps:,} steps", options.failures(counts))))
        display.show(workload, {"episodes": (counts.finished, total)}, note)
