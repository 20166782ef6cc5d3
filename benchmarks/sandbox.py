"""Measures how a provider starts, runs and removes jobs that need memory and time."""

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
    """The work of a job: it allocates memory, writes to every page of it, and holds it.

    Attributes:
        name: Name of the workload.
        hold_s: Seconds for which the job holds its memory.
        megabytes: Memory in MiB.
    """

    name: str
    hold_s: float
    megabytes: int

    def scaled(self, hold: float, memory: float) -> MemoryWorkload:
        """A workload with other sizes, for quick trials.

        Args:
            hold: Factor for `hold_s`.
            memory: Factor for `megabytes`.
        """
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
        workload: Work of each job.
        concurrency: Number of concurrent jobs.
        jobs: Number of all jobs.
    """

    workload: MemoryWorkload
    concurrency: int
    jobs: int

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.concurrency} at once"


@dataclass(slots=True)
class SandboxJob:
    """One job: a line of `raw.jsonl`. Times are seconds since the start of its batch; None if the job failed before.

    Attributes:
        workload, concurrency: The batch of the job.
        number: Number of the job in its batch, from 1.
        asked_at: Time of the request to the provider.
        running_at: Time when the server accepted sessions.
        done_at: Time when the work was done.
        gone_at: Time when the server was removed.
        allocation_s: Seconds to allocate the memory.
        peak_rss_bytes: Peak resident memory of the process.
        error_type, error_message: Reason of a failure.
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
        """Whether the work was done, without an error."""
        return self.error_type is None and self.done_at is not None

    @property
    def scheduling_s(self) -> float | None:
        """Seconds from the request until the job ran."""
        return None if self.running_at is None else self.running_at - self.asked_at

    @property
    def running_s(self) -> float | None:
        """Seconds from the start of the job until its work was done."""
        return None if self.done_at is None or self.running_at is None else self.done_at - self.running_at

    @property
    def total_s(self) -> float | None:
        """Seconds from the request until the work was done."""
        return None if self.done_at is None else self.done_at - self.asked_at


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One batch: a line of `summary.csv`. Quantiles are by nearest rank over the successful jobs; None without any.

    Attributes:
        workload, concurrency, jobs: The batch.
        successful: Number of successful jobs.
        success_rate: Successful jobs as a share of all.
        wall_s: Seconds from the start of the batch until its last job was removed.
        scheduling_p50, scheduling_p95: Seconds until a job ran.
        running_p50, running_p95: Seconds that a job ran.
        total_p50, total_p95: Seconds of both together.
        jobs_per_minute: Successful jobs by wall time.
        average_peak_rss_mb: Mean of the peak memory of the jobs in MiB.
        first_running_s: Time when the first job ran.
        all_done_s: Time when the last job had done its work.
        allocation_mean_s: Mean of the seconds to allocate the memory.
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
    """Summarizes a batch.

    Args:
        jobs: All jobs of the batch, at least one.
        wall_s: Duration of the batch, more than 0.
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
    """Writes CSV with a header. A missing value is an empty cell."""
    table = csv.DictWriter(file, JobSummary.columns(), lineterminator="\n")
    table.writeheader()
    for summary in summaries:
        table.writerow({name: _rounded(value) for name, value in asdict(summary).items()})


def document(
    summaries: Iterable[JobSummary], workloads: Iterable[MemoryWorkload], command: str, place: str
) -> dict[str, Any]:
    """The contents of `result.json`.

    Args:
        summaries: One for each batch.
        workloads: Workloads of the batches.
        command: The command line.
        place: Description of the provider.
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
# Extra time for a step, to allocate memory on a machine that must free some first.
SPARE_S = 60.0


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """The batches to measure: each workload at each concurrency.

    Attributes:
        workloads: Workloads of the jobs.
        concurrencies: Numbers of concurrent jobs.
        jobs: Jobs of each batch, at least its concurrency; None: the concurrency.
        ready_timeout_s: Seconds until a job must run; None: the default of the provider.
    """

    workloads: Sequence[MemoryWorkload]
    concurrencies: Sequence[int]
    jobs: int | None = None
    ready_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not self.workloads or not self.concurrencies:
            raise UsageError("nothing to measure: give at least one workload and one concurrency")
        if min(self.concurrencies) < 1:
            raise UsageError(f"a concurrency must be 1 or more, got {min(self.concurrencies)} (--concurrency)")

    @property
    def batches(self) -> list[JobBatch]:
        """The batches in their order."""
        return [
            JobBatch(workload, concurrency, max(self.jobs or 0, concurrency))
            for workload in self.workloads
            for concurrency in self.concurrencies
        ]


def spec_for(provider: Provider, image: str | None) -> LaunchSpec:
    """The launch spec of a server for the workload.

    Args:
        provider: The provider that starts it.
        image: An image that contains openenv, for providers that start images.

    Raises:
        UsageError: The provider starts only images and `image` is None, or it does not start images.
    """
    forms = provider.capabilities.forms
    serving = ["openenv", "serve", TARGET]
    if image is not None:
        if "image" not in forms:
            raise UsageError(f"{type(provider).__name__} does not start images: leave out --image")
        inside = {"HOST": "0.0.0.0"}  # noqa: S104 - in a container, which publishes only the port
        return LaunchSpec(image=image, command=serving, env_vars=inside, name="bench")
    if "target" in forms:
        return LaunchSpec(target=TARGET, name="bench")
    if "command" in forms:
        return LaunchSpec(command=[sys.executable, "-m", *serving], name="bench")
    raise UsageError(f"{type(provider).__name__} only starts images: give one that contains openenv (--image)")


def measure_sandboxes(
    plan: SandboxPlan,
    provider: Provider,
    spec: LaunchSpec,
    output_dir: Path,
    command: str,
    place: str,
    progress: Progress = lambda batch, jobs: None,
) -> list[JobSummary]:
    """Runs all batches one after the other, and removes every server, also after errors and Ctrl-C.

    Writes `raw.jsonl`, `summary.csv` and `result.json` after each batch. Failed jobs are part of the result.

    Args:
        plan: The batches.
        provider: The provider to measure.
        spec: Launch spec of a server for the workload.
        output_dir: Folder for the results. Created if it does not exist.
        command: The command line, for the result.
        place: Description of the provider, for the result.
        progress: Called with the current batch and its jobs after each change of a job.

    Returns:
        The summary of each batch.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    summaries: list[JobSummary] = []
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for batch in plan.batches:
            run = _BatchRun(plan, batch, provider, spec, progress)
            summaries.append(asyncio.run(run.all()))
            write_jobs(raw, run.jobs)
            raw.flush()
            with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as table:
                write_summaries(table, summaries)
            result = document(summaries, plan.workloads, command, place)
            (output_dir / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return summaries


class _BatchRun:
    """Runs one batch."""

    def __init__(self, plan: SandboxPlan, batch: JobBatch, provider: Provider, spec: LaunchSpec, progress: Progress):
        self.jobs: list[SandboxJob] = []
        self._plan = plan
        self._batch = batch
        self._provider = provider
        self._spec = spec
        self._progress = progress
        self._began = time.monotonic()

    async def all(self) -> JobSummary:
        slots = asyncio.Semaphore(self._batch.concurrency)

        async def one(number: int) -> None:
            async with slots:
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
