"""How a provider starts, runs and removes jobs that take memory and time."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from openenv._statistics import quantiles_of
from openenv.bench.holder import TARGET
from openenv.bench.machine import machine
from openenv.client import GenericEnvClient
from openenv.errors import OpenEnvError, UsageError
from openenv.providers.base import Provider
from openenv.providers.deployment import Deployment
from openenv.providers.spec import LaunchSpec

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemoryWorkload:
    """What a job does: it takes memory, writes to every page of it, and holds it.

    Attributes:
        name: What it is called.
        hold_s: Seconds for which it is held.
        megabytes: MiB.
    """

    name: str
    hold_s: float
    megabytes: int

    def scaled(self, hold: float, memory: float) -> MemoryWorkload:
        """The same with other measures, for trying things out."""
        return MemoryWorkload(self.name, self.hold_s * hold, max(1, round(self.megabytes * memory)))


WORKLOADS: Mapping[str, MemoryWorkload] = {
    workload.name: workload
    for workload in (
        MemoryWorkload("short", 10.0, 128),
        MemoryWorkload("medium", 45.0, 512),
        MemoryWorkload("long", 120.0, 1024),
    )
}
"""The published workloads, by name."""


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Jobs of one workload.

    Attributes:
        workload: What each does.
        concurrency: How many there are at one time.
        jobs: How many there are in all.
    """

    workload: MemoryWorkload
    concurrency: int
    jobs: int

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.concurrency} at once"


@dataclass(slots=True)
class SandboxJob:
    """One job: a line of `raw.jsonl`. Times are seconds since its batch began; None: it did not come so far.

    Attributes:
        workload, concurrency, number: Of which batch, and which of it, from 1.
        asked_at: When it was asked for.
        running_at: When a session could be had there.
        done_at: When its work was done.
        gone_at: When all of it was removed again.
        allocation_s: Seconds until it had its memory.
        peak_rss_bytes: The most that its process had.
        error_type, error_message: Why it failed.
    """

    workload: str
    concurrency: int
    number: int
    asked_at: float
    running_at: float | None = None
    done_at: float | None = None
    gone_at: float | None = None
    allocation_s: float | None = None
    peak_rss_bytes: int | None = None
    error_type: str | None = None
    error_message: str | None = None

    @property
    def success(self) -> bool:
        """Whether it did its work, and is gone."""
        return self.error_type is None and self.done_at is not None

    @property
    def scheduling_s(self) -> float | None:
        """Seconds from asking for it until it ran."""
        return None if self.running_at is None else self.running_at - self.asked_at

    @property
    def running_s(self) -> float | None:
        """Seconds from then until its work was done."""
        return None if self.done_at is None or self.running_at is None else self.done_at - self.running_at

    @property
    def total_s(self) -> float | None:
        """Both together."""
        return None if self.done_at is None else self.done_at - self.asked_at


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One batch: a line of `summary.csv`. Quantiles are by nearest rank over the jobs that succeeded; None: none did.

    Attributes:
        workload, concurrency, jobs: What it was.
        successful: How many did their work.
        success_rate: That as a share of all.
        wall_s: Seconds from its beginning until its last job was removed.
        scheduling_p50, scheduling_p95: Seconds until a job ran.
        running_p50, running_p95: Seconds that it ran.
        total_p50, total_p95: Both together.
        jobs_per_minute: Successful jobs by wall time.
        average_peak_rss_mb: MiB, the mean of the jobs.
        first_running_s: When the first job ran.
        all_done_s: When the last one's work was done.
        allocation_mean_s: Seconds until a job had its memory, the mean.
    """

    workload: str
    concurrency: int
    jobs: int
    successful: int
    success_rate: float
    wall_s: float
    scheduling_p50: float | None
    scheduling_p95: float | None
    running_p50: float | None
    running_p95: float | None
    total_p50: float | None
    total_p95: float | None
    jobs_per_minute: float
    average_peak_rss_mb: float | None
    first_running_s: float | None
    all_done_s: float | None
    allocation_mean_s: float | None

    @classmethod
    def columns(cls) -> list[str]:
        """The header of `summary.csv`."""
        return [field.name for field in fields(cls)]


def summarize(jobs: Sequence[SandboxJob], wall_s: float) -> JobSummary:
    """Sums a batch up.

    Args:
        jobs: All of it, at least one.
        wall_s: Its duration, above 0.
    """
    good = [job for job in jobs if job.success]
    scheduling, running, total = (
        quantiles_of(getattr(job, name) for job in good) for name in ("scheduling_s", "running_s", "total_s")
    )
    peak = _mean(job.peak_rss_bytes for job in good)
    return JobSummary(
        workload=jobs[0].workload,
        concurrency=jobs[0].concurrency,
        jobs=len(jobs),
        successful=len(good),
        success_rate=len(good) / len(jobs),
        wall_s=wall_s,
        scheduling_p50=scheduling.p50,
        scheduling_p95=scheduling.p95,
        running_p50=running.p50,
        running_p95=running.p95,
        total_p50=total.p50,
        total_p95=total.p95,
        jobs_per_minute=60 * len(good) / wall_s,
        average_peak_rss_mb=None if peak is None else peak / MEBIBYTE,
        first_running_s=min((job.running_at for job in good if job.running_at is not None), default=None),
        all_done_s=max((job.done_at for job in good if job.done_at is not None), default=None),
        allocation_mean_s=_mean(job.allocation_s for job in good),
    )


def write_jobs(file: IO[str], jobs: Iterable[SandboxJob]) -> None:
    """Writes a line of JSON for each job."""
    for job in jobs:
        took = {name: getattr(job, name) for name in ("success", "scheduling_s", "running_s", "total_s")}
        file.write(json.dumps({name: _rounded(value) for name, value in {**asdict(job), **took}.items()}) + "\n")


def write_summaries(file: IO[str], summaries: Iterable[JobSummary]) -> None:
    """Writes CSV with a header; what was not measured is an empty cell."""
    table = csv.DictWriter(file, JobSummary.columns(), lineterminator="\n")
    table.writeheader()
    for summary in summaries:
        table.writerow({name: _rounded(value) for name, value in asdict(summary).items()})


def document(
    summaries: Iterable[JobSummary], workloads: Iterable[MemoryWorkload], command: str, place: str
) -> dict[str, Any]:
    """What is written to `result.json`.

    Args:
        summaries: One a batch.
        workloads: What was done in them.
        command: What was typed to do it.
        place: Where, in words.
    """
    return {
        "bench": "sandbox",
        "command": command,
        "machine": machine(),
        "server": place,
        "workload": {workload.name: asdict(workload) for workload in workloads},
        "batches": [asdict(summary) for summary in summaries],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value


Progress = Callable[[JobBatch, Sequence[SandboxJob]], None]
# Beyond the seconds that a step holds its memory: for taking it, on a machine that has to make room first.
SPARE_S = 60.0


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """What is measured: each workload at each concurrency.

    Attributes:
        workloads: What jobs do.
        concurrencies: How many there are at one time.
        jobs: Jobs of each batch; None: as many as there are at one time.
        ready_timeout_s: Seconds until a job must run; None: what its place thinks right.
    """

    workloads: Sequence[MemoryWorkload]
    concurrencies: Sequence[int]
    jobs: int | None = None
    ready_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not self.workloads or not self.concurrencies:
            raise UsageError("there is nothing to measure: give at least one workload and one concurrency")
        if min(self.concurrencies) < 1:
            raise UsageError(f"a concurrency must be 1 or more, got {min(self.concurrencies)} (--concurrency)")

    @property
    def batches(self) -> list[JobBatch]:
        """What to do, one after the other."""
        return [
            JobBatch(workload, concurrency, max(self.jobs or 0, concurrency))
            for workload in self.workloads
            for concurrency in self.concurrencies
        ]


def spec_for(provider: Provider, image: str | None) -> LaunchSpec:
    """What serves the workload at a place.

    Args:
        provider: The place.
        image: An image that has openenv in it, for places that start images.

    Raises:
        UsageError: The place starts nothing but images, and there is none; or it starts none.
    """
    forms = provider.capabilities.forms
    serving = ["openenv", "serve", TARGET]
    if image is not None:
        if "image" not in forms:
            raise UsageError(f"{type(provider).__name__} starts no images: leave out --image")
        inside = {"HOST": "0.0.0.0"}  # noqa: S104 - in its container, where only its port is published
        return LaunchSpec(image=image, command=serving, env_vars=inside, name="bench")
    if "target" in forms:
        return LaunchSpec(target=TARGET, name="bench")
    if "command" in forms:
        return LaunchSpec(command=[sys.executable, "-m", *serving], name="bench")
    raise UsageError(f"{type(provider).__name__} starts images only: name one with openenv in it (--image)")


def measure_sandboxes(
    plan: SandboxPlan,
    provider: Provider,
    spec: LaunchSpec,
    output_dir: Path,
    command: str,
    place: str,
    progress: Progress = lambda batch, jobs: None,
) -> list[JobSummary]:
    """Does all batches, one after the other, and leaves nothing at the place, after errors and Ctrl-C, too.

    Writes `raw.jsonl`, `summary.csv` and `result.json` as it goes. Jobs that fail are part of the result.

    Args:
        plan: What to do.
        provider: Where.
        spec: What serves the workload there.
        output_dir: Where to write; made if it is not there.
        command: What was typed to measure it.
        place: Where it is done, in words.
        progress: Called with the batch under way and its jobs, whenever one of them has come further.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    summaries: list[JobSummary] = []
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for batch in plan.batches:
            run = _Run(plan, batch, provider, spec, progress)
            summaries.append(asyncio.run(run.all()))
            write_jobs(raw, run.jobs)
            raw.flush()
            with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as table:
                write_summaries(table, summaries)
            result = document(summaries, plan.workloads, command, place)
            (output_dir / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return summaries


class _Run:
    """One batch under way."""

    def __init__(self, plan: SandboxPlan, batch: JobBatch, provider: Provider, spec: LaunchSpec, progress: Progress):
        self.jobs: list[SandboxJob] = []
        self._plan = plan
        self._batch = batch
        self._provider = provider
        self._spec = spec
        self._progress = progress
        self._began = time.monotonic()

    async def all(self) -> JobSummary:
        room = asyncio.Semaphore(self._batch.concurrency)

        async def one(number: int) -> None:
            async with room:
                await self._one(number)

        self._progress(self._batch, self.jobs)
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, self._batch.jobs + 1):
                tasks.create_task(one(number))
        return summarize(self.jobs, self._now())

    async def _one(self, number: int) -> None:
        job = SandboxJob(self._batch.workload.name, self._batch.concurrency, number, self._now())
        self.jobs.append(job)
        try:
            async with await self._provider.launch(self._spec) as deployment:
                await self._work(job, deployment)
            job.gone_at = self._now()
        except OpenEnvError as error:
            job.error_type, job.error_message = type(error).__name__, str(error)
        self._progress(self._batch, self.jobs)

    async def _work(self, job: SandboxJob, deployment: Deployment) -> None:
        await deployment.ready(self._plan.ready_timeout_s)
        job.running_at = self._now()
        self._progress(self._batch, self.jobs)
        workload = self._batch.workload
        limit = workload.hold_s + SPARE_S
        async with GenericEnvClient(deployment.url, api_key=deployment.api_key, message_timeout_s=limit) as env:
            await env.reset()
            held = await env.step({"megabytes": workload.megabytes, "seconds": workload.hold_s})
            job.done_at = self._now()
        job.allocation_s = float(held.observation["allocation_s"])
        job.peak_rss_bytes = int(held.observation["peak_rss_bytes"])
        self._progress(self._batch, self.jobs)

    def _now(self) -> float:
        return time.monotonic() - self._began
