"""Commands of `openenv bench` that need a checkout: demo, compare, frames, batched, sandbox, report."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from openenv.cli import bench as options
from openenv.cli.terminal import COUNT, FILE, FOLDER, display_module, ended_in_order, together
from openenv.errors import UsageError

if TYPE_CHECKING:
    from openenv.bench.load import LoadCounts
    from openenv.cli.display import Display

    from .sandbox import JobBatch, JobSummary, MemoryWorkload, SandboxJob
    from .turns import TurnRate


@click.command(short_help="Compare two measurements.")
@click.argument("first", metavar="A.json", type=FILE)
@click.argument("second", metavar="B.json", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with one object for each figure.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Prints the ratio B / A of every figure, with its 95 % confidence interval over the trials of both (Welch's, of
    the logarithms), and whether B is faster or slower, or no difference is shown. A and B are outputs of
    `openenv bench steps --json`, or the result.json of `openenv bench scale`.

    \b
    Examples:
      openenv bench steps --serve benchmark --trials 5 --json > before.json
      openenv bench steps --serve benchmark --trials 5 --json > after.json
      openenv bench compare before.json after.json
    """
    shown = display_module()
    from .compare import compare as compare_results
    from .result import read_result
    from .tables import compare_table

    found = compare_results(read_result(first), read_result(second))
    if as_json:
        print(json.dumps([asdict(comparison) for comparison in found]))
        return
    shown.console().print(compare_table(found))
    if any(comparison.low is None for comparison in found):
        print(
            "One trial gives no confidence interval: measure both with --trials 5 (bench steps) or --reps 5 (scale)."
        )


@click.command(short_help="Serve, drive and measure on this machine, in under a minute.")
@click.option("--output-dir", type=FOLDER, default="out/demo", show_default=True, help="Folder for the results.")
@click.option("--sessions", type=COUNT, default=1024, show_default=True, help="Concurrent benchmark sessions.")
@click.option("--episodes", type=COUNT, default=200, show_default=True, help="Episodes of each game.")
@click.option("--concurrency", type=COUNT, default=64, show_default=True, help="Sessions that play concurrently.")
def demo(output_dir: Path, sessions: int, episodes: int, concurrency: int) -> None:
    """Serves the benchmark environment and two games, drives them, and prints the measurements.

    \b
    Examples:
      openenv bench demo
      openenv bench demo --sessions 256 --output-dir out/small
    """
    shown = display_module()
    from .demo import Demo, check_demo, run_demo
    from .tables import demo_table

    plan = Demo(sessions, episodes, concurrency, output_dir)
    check_demo(plan)
    began = time.monotonic()
    with ended_in_order(), shown.Display() as display:
        workloads = run_demo(plan, display.say, partial(_show_workload, display))
    console = shown.console()
    console.print(demo_table(workloads))
    console.print(
        f"{os.cpu_count()} cores, {time.monotonic() - began:.0f} s; "
        f"written: {output_dir}/report.html, summary.csv, raw.jsonl",
        markup=False,
    )
    failed = sum(workload.failed for workload in workloads)
    if failed:
        console.print(f"{failed:,} failed: see {output_dir}/raw.jsonl for the reasons", style="red", markup=False)
        raise click.exceptions.Exit(1)


def _show_workload(display: Display, workload: str, total: int, counts: LoadCounts) -> None:
    if workload == "benchmark":
        display.show(workload, options.phases(total, counts), options.failures(counts))
    else:
        note = ", ".join(filter(None, (f"{counts.steps:,} steps", options.failures(counts))))
        display.show(workload, {"episodes": (counts.finished, total)}, note)


turn_options = together(
    click.option("--rounds", type=COUNT, default=5, show_default=True, help="Turns of each system."),
    click.option(
        "--duration", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds of each turn."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for `openenv bench compare`."),
)


@click.command(short_help="Image observations, next to Gymnasium's vector environments.")
@click.option("--env", "env_id", help="A real environment, e.g. ALE/Pong-v5 (grey, 84x84, 4 frames).")
@click.option("--shape", default="84x84x4", show_default=True, help="Shape of an image of bytes, without --env.")
@click.option("--envs", type=COUNT, default=16, show_default=True, help="Number of environments.")
@click.option("--workers", type=COUNT, default=2, show_default=True, help="Worker processes of the server.")
@turn_options
def frames(
    env_id: str | None, shape: str, envs: int, workers: int, rounds: int, duration: float, as_json: bool
) -> None:
    """Steps the same environments through RemoteVectorEnv, AsyncVectorEnv (a process for each), SyncVectorEnv (all in
    one process) and a bare picows socket, in turns; memcpy copies the same bytes without a step. Also prints the
    memory of openenv's server and client.

    \b
    Examples:
      openenv bench frames
      openenv bench frames --shape 480x640x3 --envs 4
      openenv bench frames --env ALE/Pong-v5
      openenv bench frames --env CartPole-v1 --envs 256
    """
    shown = display_module()
    from .frames import Frames, measure_frames
    from .tables import memory_line, turns_table
    from .turns import TurnPlan

    sizes = tuple(options.numbers(shape, int, "--shape", "x"))
    if min(sizes) < 1:
        raise UsageError(f"--shape is {shape}: each of its numbers must be at least 1")
    what = Frames(sizes, env_id, workers, TurnPlan(envs, rounds, duration))
    with ended_in_order(), shown.Display() as display:
        found = measure_frames(what, display.say)
    if as_json:
        workload = {"env": env_id, "shape": None if env_id else sizes, "envs": envs, "workers": workers}
        memory = {**asdict(found.memory), "by_arrays": found.memory.by_arrays}
        print_turns("frames", workload, f"{env_id or 'images'}, {workers} worker(s)", found.rates, memory=memory)
        return
    console = shown.console()
    console.print(turns_table(found.rates, found.memory.arrays // envs))
    console.print(memory_line(found.memory), soft_wrap=True)


@click.command(short_help="Many worlds in one environment, next to other ways to step them.")
@click.option("--world", type=click.Choice(["cartpole", "pendulums"]), default="cartpole", show_default=True)
@click.option("--envs", type=COUNT, help="Number of worlds.  [default: 256 of cartpole, 1024 of pendulums]")
@click.option(
    "--workers", type=COUNT, default=2, show_default=True, help="Worker processes of the ordinary sessions."
)
@turn_options
def batched(world: str, envs: int | None, workers: int, rounds: int, duration: float, as_json: bool) -> None:
    """Steps a BatchedEnvironment through the client that owns it, as RemoteVectorEnv, through a bare picows socket
    and in process, in turns; and up to 1,024 CartPoles also as sessions that share the batch, as ordinary sessions,
    and as SyncVectorEnv. A policy chooses the actions in the client. Pendulums are simulated by MuJoCo.

    \b
    Examples:
      openenv bench batched
      openenv bench batched --envs 4096
      openenv bench batched --world pendulums
    """
    shown = display_module()
    from .batched import Batched, measure_batched
    from .tables import turns_table
    from .turns import TurnPlan
    from .worlds import WORLDS

    count = envs or WORLDS[world].base.num_envs
    what = Batched(world, workers, TurnPlan(count, rounds, duration))
    with ended_in_order(), shown.Display() as display:
        rates = measure_batched(what, display.say)
    if as_json:
        workload = {"world": world, "envs": count, "workers": workers}
        print_turns("batched", workload, f"{count} worlds of {world}", rates)
    else:
        shown.console().print(turns_table(rates))


def print_turns(
    kind: str, workload: Mapping[str, Any], served_by: str, rates: Mapping[str, Sequence[TurnRate]], **further: Any
) -> None:
    """Prints the result of systems in turns as JSON."""
    from .result import turns_document
    from .turns import ratios

    systems = {name: [asdict(rate) for rate in rounds] for name, rounds in rates.items()}
    further = {"ratios": ratios(rates), **further}
    print(json.dumps(turns_document(kind, workload, options.command_line(), served_by, systems, **further)))


@click.command(short_help="Write the report and figures of `bench scale`.")
@click.argument("folder", type=FOLDER)
def report(folder: Path) -> None:
    """Writes report.html and its figures into FOLDER. Reads the result.json and raw.jsonl that `openenv bench scale`
    wrote there, on this machine or another.

    \b
    Examples:
      openenv bench report out/scale
    """
    from .report import write_scale_report

    write_scale_report(folder)
    print(f"written: {folder}/report.html")


SHOWN_REASONS = 5


@click.command(short_help="Measure how a provider starts, runs and removes jobs.")
@click.option(
    "--provider", "place", default="local", show_default=True, help="Provider of the jobs, see `providers list`."
)
@click.option("--image", help="Image that contains openenv, for providers that start images.")
@click.option(
    "--option", "given", multiple=True, metavar="NAME=VALUE", help="An option of the provider, see its documentation."
)
@click.option(
    "--provider-option", multiple=True, metavar="NAME=VALUE", help="An argument of the provider's constructor."
)
@click.option("--workloads", default="short,medium,long", show_default=True, help="Workloads to measure.")
@click.option(
    "--concurrency", default="1,2,4", show_default=True, help="Numbers of concurrent jobs, such as 1,2,4,8."
)
@click.option("--jobs", type=COUNT, show_default="the concurrency", help="Jobs of each batch.")
@click.option(
    "--hold-scale", default=1.0, show_default=True, help="Factor for the seconds that a job holds its memory."
)
@click.option("--memory-scale", default=1.0, show_default=True, help="Factor for the memory of a job.")
@click.option("--ready-timeout", type=float, show_default="the provider's", help="Seconds until a job must run.")
@click.option("--output-dir", type=FOLDER, default="out/sandbox", show_default=True, help="Folder for the results.")
def sandbox(
    place: str,
    image: str | None,
    given: Sequence[str],
    provider_option: Sequence[str],
    workloads: str,
    concurrency: str,
    jobs: int | None,
    hold_scale: float,
    memory_scale: float,
    ready_timeout: float | None,
    output_dir: Path,
) -> None:
    """Starts each job as a separate server. The job allocates memory, writes to every page of it, and holds it. Then
    the server is removed. The workloads: short (10 s, 128 MB), medium (45 s, 512 MB), long (120 s, 1,024 MB). Writes
    raw.jsonl, summary.csv and result.json. Exit code 1 if a job failed.

    \b
    Examples:
      openenv bench sandbox --provider local --concurrency 1,2,4 --hold-scale 0.1
    """
    shown = display_module()
    from openenv.cli.terminal import yaml_pairs
    from openenv.providers.catalog import catalog_entry

    from .sandbox import SandboxPlan, measure_sandboxes, spec_for

    plan = SandboxPlan(
        _chosen(workloads, hold_scale, memory_scale),
        options.numbers(concurrency, int, "--concurrency"),
        jobs,
        ready_timeout,
    )
    found = catalog_entry(place)
    with ExitStack() as stack:
        provider = found.make(**yaml_pairs("--provider-option", provider_option))
        stack.callback(getattr(provider, "close", lambda: None))
        spec = spec_for(provider, image).changed(options=yaml_pairs("--option", given))
        stack.enter_context(ended_in_order())
        display = stack.enter_context(shown.Display())
        seen: dict[str, Sequence[SandboxJob]] = {}
        summaries = measure_sandboxes(
            plan,
            provider,
            spec,
            output_dir,
            options.command_line(),
            f"{found.name}: {found.place}",
            partial(_show_jobs, display, seen),
        )
    _print_result(shown, summaries, seen.values(), output_dir)
    if any(summary.successful < summary.jobs for summary in summaries):
        raise click.exceptions.Exit(1)


def _show_jobs(
    display: Display, seen: dict[str, Sequence[SandboxJob]], batch: JobBatch, jobs: Sequence[SandboxJob]
) -> None:
    seen[str(batch)] = jobs
    running = sum(job.running_at is not None for job in jobs)
    done = sum(job.done_at is not None for job in jobs)
    failed = sum(job.error_type is not None for job in jobs)
    phases = {"running": (running, batch.jobs), "done": (done, batch.jobs)}
    display.show(str(batch), phases, f"{failed} failed" if failed else "")


def _print_result(
    shown: ModuleType, summaries: Sequence[JobSummary], batches: Iterable[Sequence[SandboxJob]], output_dir: Path
) -> None:
    from .tables import job_table, stage_table

    console = shown.console()
    console.print(job_table(summaries))
    console.print(stage_table(summaries))
    failed = sum(summary.jobs - summary.successful for summary in summaries)
    reasons = Counter(
        f"{job.error_type}: {job.error_message}" for jobs in batches for job in jobs if job.error_type is not None
    )
    for reason, count in reasons.most_common(SHOWN_REASONS):
        console.print(f"{count:,} x {reason}", style="red", markup=False)
    if failed:
        console.print(f"{failed} failed: see {output_dir}/raw.jsonl for the reasons", style="red", markup=False)
    console.print(f"written: {output_dir}/result.json, summary.csv, raw.jsonl", markup=False)


def _chosen(names: str, hold: float, memory: float) -> list[MemoryWorkload]:
    from .sandbox import WORKLOADS

    if not (hold >= 0 and memory > 0):
        raise UsageError(
            f"--hold-scale must be 0 or more and --memory-scale more than 0, got {hold:g} and {memory:g}"
        )
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in WORKLOADS]
    if unknown:
        raise UsageError(f"no workload {', '.join(map(repr, unknown))}: there are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name].scaled(hold, memory) for name in wanted]
