"""`openenv bench`: measure an environment server."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import bench_options as options
from .bench_compare import compare
from .bench_sandbox import sandbox
from .bench_scale import scale
from .bench_steps import steps

if TYPE_CHECKING:
    from ..bench.crew import Counts
    from .bench_display import Display

__all__ = ["app"]


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


def _show_workload(display: Display, workload: str, total: int, counts: Counts) -> None:
    if workload == "benchmark":
        display.show(workload, options.phases(total, counts), options.failures(counts))
    else:
        note = ", ".join(filter(None, (f"{counts.steps:,} steps", options.failures(counts))))
        display.show(workload, {"episodes": (counts.finished, total)}, note)
