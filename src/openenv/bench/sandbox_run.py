"""Runs jobs at a place for servers: each is a deployment of its own that does one step and is removed."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..client import GenericEnvClient
from ..errors import OpenEnvError, UsageError
from ..providers.deployment import Deployment
from ..providers.provider import Provider
from ..providers.spec import LaunchSpec
from .holder import TARGET
from .sandbox import Batch, Job, Summary, Workload, document, summarize, write_jobs, write_summaries

__all__ = ["Plan", "measure_sandboxes", "spec_for"]

Progress = Callable[[Batch, Sequence[Job]], None]
# Beyond the seconds that a step holds its memory: for taking it, on a machine that has to make room first.
SPARE_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: each workload at each concurrency.

    Attributes:
        workloads: What jobs do.
        concurrencies: How many there are at one time.
        jobs: Jobs of each batch; None: as many as there are at one time.
        ready_timeout_s: Seconds until a job must run; None: what its place thinks right.
    """

    workloads: Sequence[Workload]
    concurrencies: Sequence[int]
    jobs: int | None = None
    ready_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not self.workloads or not self.concurrencies:
            raise UsageError("there is nothing to measure: give at least one workload and one concurrency")
        if min(self.concurrencies) < 1:
            raise UsageError(f"a concurrency must be 1 or more, got {min(self.concurrencies)} (--concurrency)")

    @property
    def batches(self) -> list[Batch]:
        """What to do, one after the other."""
        return [
            Batch(workload, concurrency, max(self.jobs or 0, concurrency))
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
    plan: Plan,
    provider: Provider,
    spec: LaunchSpec,
    output_dir: Path,
    command: str,
    place: str,
    progress: Progress = lambda batch, jobs: None,
) -> list[Summary]:
    """Does all batches, one after the other, and leaves nothing at the place, whatever happens: Ctrl-C, too.

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
    summaries: list[Summary] = []
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for batch in plan.batches:
            run = _Run(plan, batch, provider, spec, progress)
            summaries.append(asyncio.run(run.all()))
            write_jobs(raw, run.jobs)
            raw.flush()
            with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as table:
                write_summaries(table, summaries)
            told = document(summaries, plan.workloads, command, place)
            (output_dir / "result.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return summaries


class _Run:
    """One batch under way."""

    def __init__(self, plan: Plan, batch: Batch, provider: Provider, spec: LaunchSpec, progress: Progress):
        self.jobs: list[Job] = []
        self._plan = plan
        self._batch = batch
        self._provider = provider
        self._spec = spec
        self._progress = progress
        self._began = time.monotonic()

    async def all(self) -> Summary:
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
        job = Job(self._batch.workload.name, self._batch.concurrency, number, self._now())
        self.jobs.append(job)
        try:
            async with await self._provider.launch(self._spec) as deployment:
                await self._work(job, deployment)
            job.gone_at = self._now()
        except OpenEnvError as error:
            job.error_type, job.error_message = type(error).__name__, str(error)
        self._progress(self._batch, self.jobs)

    async def _work(self, job: Job, deployment: Deployment) -> None:
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
