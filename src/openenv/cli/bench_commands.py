"""Commands of `openenv bench` that need a checkout: demo, compare, sandbox, report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from ..errors import UsageError
from . import bench_options as options
from .bench_options import pairs

if TYPE_CHECKING:
    from ..bench.sandbox import JobBatch, JobSummary, MemoryWorkload, SandboxJob
    from .bench_display import Display

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Whether one measurement differs from another.")
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="B.json", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a figure.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Says for every figure how B stands to A, with the 95 % confidence interval of the ratio over the trials of both
    (Welch's, of the logarithms), and whether B is faster, slower, or no difference is shown. A and B are what
    `openenv bench steps --json` printed, or the result.json of `openenv bench scale`.

    \b
    Examples:
      openenv bench steps --serve benchmark --trials 5 --json > before.json
      openenv bench steps --serve benchmark --trials 5 --json > after.json
      openenv bench compare before.json after.json
    """
    shown = options.display_module()
    from ..bench.compare import compare as compare_results
    from ..bench.result import read_result

    found = compare_results(read_result(first), read_result(second))
    if as_json:
        print(json.dumps([asdict(comparison) for comparison in found]))
        return
    shown.stdout().print(shown.compare_table(found))
    if any(comparison.low is None for comparison in found):
        print("One trial says nothing about chance: measure both with --trials 5 (bench steps) or --reps 5 (scale).")


SHOWN_REASONS = 5


@click.command(short_help="How a place starts, runs and removes jobs.")
@click.option(
    "--provider", "place", default="local", show_default=True, help="Where jobs run, as `providers list` says."
)
@click.option("--image", help="Image with openenv in it, for places that start images.")
@click.option(
    "--option", "given", multiple=True, metavar="NAME=VALUE", help="An option of the place, as its page says."
)
@click.option("--provider-option", multiple=True, metavar="NAME=VALUE", help="An argument of the provider.")
@click.option("--workloads", default="short,medium,long", show_default=True, help="Which of the workloads.")
@click.option("--concurrency", default="1,2,4", show_default=True, help="Jobs at one time, as 1,2,4,8.")
@click.option("--jobs", type=options.COUNT, show_default="as many as at one time", help="Jobs of each batch.")
@click.option("--hold-scale", default=1.0, show_default=True, help="Factor for the seconds that memory is held.")
@click.option("--memory-scale", default=1.0, show_default=True, help="Factor for the memory.")
@click.option("--ready-timeout", type=float, show_default="the provider's", help="Seconds until a job must run.")
@click.option(
    "--output-dir", type=options.FOLDER, default="out/sandbox", show_default=True, help="Where the results go."
)
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
    """Each job is a server of its own: started, waited for, told to take memory, to write to every page of it and to
    hold it, and removed. The workloads: short (10 s, 128 MB), medium (45 s, 512 MB), long (120 s, 1,024 MB). Writes
    raw.jsonl, summary.csv and result.json. Exit code 1 if a job failed.

    \b
    Examples:
      openenv bench sandbox --provider local --concurrency 1,2,4,8 --hold-scale 0.1
    """
    shown = options.display_module()
    from ..bench.sandbox import SandboxPlan, measure_sandboxes, spec_for
    from ..providers.catalog import catalog_entry

    plan = SandboxPlan(_chosen(workloads, hold_scale, memory_scale), _numbers(concurrency), jobs, ready_timeout)
    found = catalog_entry(place)
    with ExitStack() as stack:
        provider = found.make(**pairs(provider_option, "--provider-option"))
        stack.callback(getattr(provider, "close", lambda: None))
        spec = spec_for(provider, image).changed(options=pairs(given, "--option"))
        stack.enter_context(options.ended_in_order())
        display = stack.enter_context(shown.Display())
        seen: dict[str, Sequence[SandboxJob]] = {}
        summaries = measure_sandboxes(
            plan,
            provider,
            spec,
            output_dir,
            options.command_line(),
            f"{found.name}: {found.place}",
            partial(_show, display, seen),
        )
    _tell(shown, summaries, seen.values(), output_dir)
    if any(summary.successful < summary.jobs for summary in summaries):
        raise click.exceptions.Exit(1)


def _show(
    display: Display, seen: dict[str, Sequence[SandboxJob]], batch: JobBatch, jobs: Sequence[SandboxJob]
) -> None:
    seen[str(batch)] = jobs
    running = sum(job.running_at is not None for job in jobs)
    done = sum(job.done_at is not None for job in jobs)
    failed = sum(job.error_type is not None for job in jobs)
    phases = {"running": (running, batch.jobs), "done": (done, batch.jobs)}
    display.show(str(batch), phases, f"{failed} failed" if failed else "")


def _tell(
    shown: ModuleType, summaries: Sequence[JobSummary], batches: Iterable[Sequence[SandboxJob]], output_dir: Path
) -> None:
    from .bench_tables import job_table, stage_table

    console = shown.stdout()
    console.print(job_table(summaries))
    console.print(stage_table(summaries))
    failed = sum(summary.jobs - summary.successful for summary in summaries)
    reasons = Counter(
        f"{job.error_type}: {job.error_message}" for jobs in batches for job in jobs if job.error_type is not None
    )
    for reason, count in reasons.most_common(SHOWN_REASONS):
        console.print(f"{count:,} x {reason}", style="red", markup=False)
    if failed:
        console.print(f"{failed} failed: {output_dir}/raw.jsonl says why", style="red", markup=False)
    console.print(f"written: {output_dir}/result.json, summary.csv, raw.jsonl", markup=False)


def _chosen(names: str, hold: float, memory: float) -> list[MemoryWorkload]:
    from ..bench.sandbox import WORKLOADS

    if not (hold >= 0 and memory > 0):
        raise UsageError(
            f"--hold-scale must be 0 or more and --memory-scale more than 0, got {hold:g} and {memory:g}"
        )
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in WORKLOADS]
    if unknown:
        raise UsageError(f"there is no workload {', '.join(map(repr, unknown))}: there are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name].scaled(hold, memory) for name in wanted]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--concurrency is {text!r}: it must be numbers with commas between them") from None
