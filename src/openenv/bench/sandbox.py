"""What a place for sandboxes can do, as figures: one row a job, one line a batch of them. Pure."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import IO, Any

from .machine import machine
from .quantiles import spread

__all__ = [
    "WORKLOADS",
    "Batch",
    "Job",
    "Summary",
    "Workload",
    "document",
    "summarize",
    "write_jobs",
    "write_summaries",
]

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Workload:
    """What a job does: it takes memory, writes to every page of it, and holds it.

    Attributes:
        name: What it is called.
        hold_s: Seconds for which it is held.
        megabytes: MiB.
    """

    name: str
    hold_s: float
    megabytes: int

    def scaled(self, hold: float, memory: float) -> Workload:
        """The same with other measures, for trying things out."""
        return Workload(self.name, self.hold_s * hold, max(1, round(self.megabytes * memory)))


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (Workload("short", 10.0, 128), Workload("medium", 45.0, 512), Workload("long", 120.0, 1024))
}
"""The published workloads, by name."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs of one workload.

    Attributes:
        workload: What each does.
        concurrency: How many there are at one time.
        jobs: How many there are in all.
    """

    workload: Workload
    concurrency: int
    jobs: int

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.concurrency} at once"


@dataclass(slots=True)
class Job:
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
class Summary:
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


def summarize(jobs: Sequence[Job], wall_s: float) -> Summary:
    """Sums a batch up.

    Args:
        jobs: All of it, at least one.
        wall_s: Its duration, above 0.
    """
    good = [job for job in jobs if job.success]
    scheduling, running, total = (
        spread(getattr(job, name) for job in good) for name in ("scheduling_s", "running_s", "total_s")
    )
    peak = _mean(job.peak_rss_bytes for job in good)
    return Summary(
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


def write_jobs(file: IO[str], jobs: Iterable[Job]) -> None:
    """Writes a line of JSON for each job."""
    for job in jobs:
        took = {name: getattr(job, name) for name in ("success", "scheduling_s", "running_s", "total_s")}
        file.write(json.dumps({name: _rounded(value) for name, value in {**asdict(job), **took}.items()}) + "\n")


def write_summaries(file: IO[str], summaries: Iterable[Summary]) -> None:
    """Writes CSV with a header; what was not measured is an empty cell."""
    table = csv.DictWriter(file, Summary.columns(), lineterminator="\n")
    table.writeheader()
    for summary in summaries:
        table.writerow({name: _rounded(value) for name, value in asdict(summary).items()})


def document(summaries: Iterable[Summary], workloads: Iterable[Workload], command: str, place: str) -> dict[str, Any]:
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
