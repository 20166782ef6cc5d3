"""`openenv bench scale`: how many sessions at once a server carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import click

from ..errors import UsageError
from . import bench_options as options
from . import bench_place as places

if TYPE_CHECKING:
    from ..bench.crew import Counts
    from ..bench.episode import Batch
    from ..bench.launched import Launching
    from ..bench.scale import Grid, ScaleResult
    from .bench_display import Display

__all__ = ["scale"]

T = TypeVar("T")


@click.command(short_help="How many sessions at once a server carries.")
@options.url_option
@options.serve_option
@places.options
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
    place: places.Place,
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
    from ..bench.row import Mode
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
    launching: Launching | None,
    url: str | None,
    serve: str | None,
    workers: int,
    grid: Grid,
) -> _Served:
    """Has something to measure, until the stack is left."""
    from ..bench.launched import Launched
    from ..bench.served import probe
    from ..settings import ClientSettings

    if launching is not None:
        display.say(f"launching {launching.words}")
        launched = stack.enter_context(Launched(launching))
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
    from ..bench.hosts import too_few_hosts

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


def _show_batch(display: Display, batch: Batch, repetition: int, counts: Counts) -> None:
    label = f"{batch.sessions:,} sessions, {batch.wait_seconds:g} s wait, repetition {repetition}"
    display.show(label, options.phases(batch.sessions, counts), options.failures(counts))


def _numbers(text: str, kind: Callable[[str], T], option: str) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} is {text!r}: it must be numbers with commas between them") from None
