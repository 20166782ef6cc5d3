"""What the rows of one batch come to: a line of `summary.csv`."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import IO

from .quantiles import spread
from .row import Row

__all__ = ["Summary", "error_counts", "max_batch", "summarize", "write_summaries"]

# Percent of the requests of every repetition that must succeed for a batch to count as carried.
CARRIED_PERCENT = 95


@dataclass(frozen=True, slots=True)
class Summary:
    """One batch. Latencies are seconds, by nearest rank over the requests that succeeded; None if none did.

    Attributes:
        mode: `ws` or `http`.
        num_requests: How many began together.
        wait_seconds: What each step asked for.
        repetition: From 1.
        successful, failed: How the requests ended.
        error_rate: `failed` as a share of all.
        total_wall_time: Seconds from the first beginning to the last end.
        requests_per_second: Successful requests by wall time.
        effective_concurrency: Sum of the successful requests' total latencies by wall time: how many were under
            way on average.
        unique_pids, unique_sessions, unique_hosts: How many different ones the environment named.
        hosts: How many of the successful requests each host had (`Row.host`). Not in `summary.csv`.
    """

    mode: str
    num_requests: int
    wait_seconds: float
    repetition: int
    successful: int
    failed: int
    error_rate: float
    total_wall_time: float
    connect_p50: float | None
    connect_p95: float | None
    connect_p99: float | None
    reset_p50: float | None
    reset_p95: float | None
    reset_p99: float | None
    step_p50: float | None
    step_p95: float | None
    step_p99: float | None
    total_p50: float | None
    total_p90: float | None
    total_p95: float | None
    total_p99: float | None
    requests_per_second: float
    effective_concurrency: float
    unique_pids: int
    unique_sessions: int
    unique_hosts: int
    hosts: Mapping[str, int] = field(default_factory=dict, metadata={"written": False})

    @classmethod
    def columns(cls) -> list[str]:
        """The header of `summary.csv`."""
        return [field.name for field in fields(cls) if field.metadata.get("written", True)]

    @property
    def host_spread(self) -> float | None:
        """By how much the fullest and the emptiest host lie apart, as a share of their mean; None without hosts."""
        if not self.hosts:
            return None
        return (max(self.hosts.values()) - min(self.hosts.values())) * len(self.hosts) / sum(self.hosts.values())


def summarize(rows: Sequence[Row], wall_s: float, repetition: int) -> Summary:
    """Sums a batch up.

    Args:
        rows: Its requests, at least one, all of one mode, size and wait.
        wall_s: Its duration, above 0.
        repetition: Which time this batch was done, from 1.
    """
    good = [row for row in rows if row.success]
    connect = spread(row.connect_latency for row in good)
    reset = spread(row.reset_latency for row in good)
    step = spread(row.step_latency for row in good)
    total = spread(row.total_latency for row in good)
    return Summary(
        mode=rows[0].mode,
        num_requests=len(rows),
        wait_seconds=rows[0].wait_requested or 0.0,
        repetition=repetition,
        successful=len(good),
        failed=len(rows) - len(good),
        error_rate=(len(rows) - len(good)) / len(rows),
        total_wall_time=wall_s,
        connect_p50=connect.p50,
        connect_p95=connect.p95,
        connect_p99=connect.p99,
        reset_p50=reset.p50,
        reset_p95=reset.p95,
        reset_p99=reset.p99,
        step_p50=step.p50,
        step_p95=step.p95,
        step_p99=step.p99,
        total_p50=total.p50,
        total_p90=total.p90,
        total_p95=total.p95,
        total_p99=total.p99,
        requests_per_second=len(good) / wall_s,
        effective_concurrency=sum(row.total_latency or 0.0 for row in good) / wall_s,
        unique_pids=len({row.pid for row in good} - {None}),
        unique_sessions=len({row.session_hash for row in good} - {None}),
        unique_hosts=len({row.host_url for row in good} - {None}),
        hosts=dict(sorted(Counter(row.host for row in good if row.host is not None).items())),
    )


def max_batch(summaries: Iterable[Summary]) -> int:
    """The largest number of requests of which at least 95 % succeeded in every repetition.

    Args:
        summaries: Batches of one mode and one wait.

    Returns:
        0 if there is no such number.
    """
    carried: defaultdict[int, bool] = defaultdict(lambda: True)
    for summary in summaries:
        carried[summary.num_requests] &= 100 * summary.successful >= CARRIED_PERCENT * summary.num_requests
    return max((size for size, holds in carried.items() if holds), default=0)


def error_counts(rows: Iterable[Row]) -> Counter[tuple[str, str]]:
    """How often each error came, by type and message."""
    return Counter((row.error_type or "", row.error_message or "") for row in rows if not row.success)


def write_summaries(file: IO[str], summaries: Iterable[Summary]) -> None:
    """Writes CSV with a header; what was not measured is an empty cell."""
    table = csv.DictWriter(file, Summary.columns(), lineterminator="\n")
    table.writeheader()
    for summary in summaries:
        values = asdict(summary)
        table.writerow({key: _rounded(values[key]) for key in Summary.columns()})


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value
