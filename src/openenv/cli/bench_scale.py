"""`openenv bench scale`: how many sessions at once a server carries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import click

from ..errors import UsageError
from . import bench_options as options

if TYPE_CHECKING:
    from ..bench.crew import Counts
    from ..bench.episode import Batch
    from ..bench.scale import ScaleResult
    from .bench_display import Display

__all__ = ["scale"]

T = TypeVar("T")


@click.command(short_help="How many sessions at once a server carries.")
@options.url_option
@options.serve_option
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
def scale(
    url: str | None,
    serve: str | None,
    requests_grid: str,
    wait_grid: str,
    reps: int,
    mode: str,
    output_dir: Path,
    workers: int,
    processes: int | None,
    timeout: float,
    server_cores: int | None,
) -> None:
    """Each session connects, resets, steps once (the action is {"wait_seconds": W}) and closes; all of a batch begin
    together. Writes raw.jsonl, summary.csv, result.json (for `openenv bench compare`), pictures and report.html.
    Requests that fail are part of the result; the exit code is 1 if none succeeded.

    \b
    Example:
      openenv bench scale --serve benchmark --workers 2 --requests-grid 1024,4096,16384
    """
    shown = options.display_module()
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
    options.one_server(url, serve)
    check_grid(grid)
    with ExitStack() as stack:
        stack.enter_context(options.ended_in_order())
        display = stack.enter_context(shown.Display())
        settle: Callable[[], None] = lambda: None  # noqa: E731
        if serve is not None:
            server = options.served(stack, display, serve, workers, max(grid.requests))
            url, settle = server.url, server.settle
        assert url is not None
        probe(url)
        result = measure_scale(
            grid,
            url,
            output_dir,
            served_by=options.served_by(serve, url, workers),
            command=options.command_line(),
            target=serve,
            cores=server_cores,
            settle=settle,
            progress=partial(_show_batch, display),
        )
    _tell(shown, result, output_dir)
    if not any(summary.successful for summary in result.summaries):
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
