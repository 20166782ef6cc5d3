"""Measure how many concurrent sessions servers can carry, with batches of many sizes."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .._processes import raise_file_limit
from ..errors import ConnectionFailed, ProviderFailed, UsageError
from ..providers import Gateway, deploy
from ..providers.autoscaler import ServerLoad
from ..providers.catalog import catalog_entry
from ..providers.deployment import Deployment
from ..providers.spec import LaunchSpec
from .batch import (
    BatchSummary,
    Mode,
    RequestBatch,
    error_counts,
    max_batch,
    require_httpx,
    run_batch,
    summarize,
    write_rows,
    write_summaries,
)
from .load import LoadCounts, check_share, enough_processes
from .machine import document_head

# Seconds until servers have no sessions, and between two checks.
SETTLE_S, LOOK_S = 10.0, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Servers to launch for a measurement.

    Attributes:
        provider: Provider, by its name in `providers.catalog`.
        provider_options: Arguments of the provider.
        spec: The servers.
        gateway: Gateway in front of them: `envoy`, or `none` if the load chooses among them.
        sessions: Maximum of concurrent sessions.
    """

    provider: str
    spec: LaunchSpec
    gateway: str
    sessions: int
    provider_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Short description."""
        what = getattr(self.spec, self.spec.form)
        before = "" if self.gateway == "none" else f", behind {self.gateway.capitalize()}"
        return f"{self.spec.count} x {what} on {self.provider}{before}"


@contextmanager
def launched(plan: LaunchPlan) -> Iterator[tuple[Deployment, list[str]]]:
    """Launches servers for a block. They are ready at its start and stopped at its end, also after an error.

    Yields:
        The servers, and the addresses for the load: theirs, or that of the gateway.

    Raises:
        UsageError: The provider does not support it.
        ProviderFailed: The launch failed.
    """
    with ExitStack() as stack:
        provider = catalog_entry(plan.provider).make(**plan.provider_options)
        close = getattr(provider, "close", None)
        if close is not None:
            stack.callback(close)
        deployment = stack.enter_context(deploy(plan.spec, provider))
        if plan.gateway == "none":
            yield deployment, deployment.urls
        else:
            with Gateway(deployment, max_sessions=max(plan.sessions, 1024)) as gateway:
                yield deployment, [gateway.url]


def settle(deployment: Deployment) -> None:
    """Waits until no server has a session, at most 10 s."""
    limit = time.monotonic() + SETTLE_S
    for url in deployment.urls:
        while time.monotonic() < limit and _is_busy(url, deployment.api_key):
            time.sleep(LOOK_S)


def _is_busy(url: str, api_key: str | None) -> bool:
    """Whether the metrics of a server show sessions. A server without metrics is considered idle."""
    try:
        return ServerLoad.read(url, api_key).held > 0
    except (ConnectionFailed, ProviderFailed):  # it may end during its answer
        return False


# With this number of sessions per host, random choice (which is worse than any balancer) misses a given host once in
# 20,000 times. Smaller batches prove nothing.
SESSIONS_EACH = 10


def host_sentences(summaries: Sequence[BatchSummary]) -> list[str]:
    """A sentence about the balance of the largest batches. Empty for one host."""
    shared = [summary for summary in summaries if len(summary.hosts) > 1]
    if not shared:
        return []
    size = max(summary.num_requests for summary in shared)
    worst = max((summary for summary in shared if summary.num_requests == size), key=_spread)
    counts = worst.hosts.values()
    return [
        f"{size:,} sessions were on {len(counts)} hosts, {min(counts):,} to {max(counts):,} on each: "
        f"{100 * _spread(worst):.1f} % apart."
    ]


def too_few_hosts(summaries: Sequence[BatchSummary], expected: int) -> str | None:
    """Why the load has not reached the expected number of hosts. None if it has.

    Each batch with at least `SESSIONS_EACH` sessions per host must have reached all hosts, and so must all batches
    together.
    """
    reached = sum((Counter(summary.hosts) for summary in summaries), Counter[str]())
    if not reached:
        return (
            f"{expected} hosts were expected, but none is known: no request succeeded, or replies do not name their "
            "host, as the environment `benchmark` (host_url) and Envoy of `openenv gateway` do"
        )
    for summary in summaries:
        if summary.num_requests >= SESSIONS_EACH * expected and len(summary.hosts) < expected:
            where = f"{summary.num_requests:,} sessions (repetition {summary.repetition})"
            return f"{expected} hosts were expected, but {where} reached {_told(summary.hosts)}"
    if len(reached) < expected:
        return f"{expected} hosts were expected, but the load reached {_told(reached)}"
    return None


def _spread(summary: BatchSummary) -> float:
    return summary.host_spread or 0.0


def _told(hosts: Mapping[str, int]) -> str:
    return f"{len(hosts)}: " + (", ".join(f"{name} ({count:,})" for name, count in sorted(hosts.items())) or "none")


@dataclass(frozen=True, slots=True)
class Grid:
    """The batches of a measurement: each size with each wait, `reps` times.

    Attributes:
        requests: Numbers of concurrent sessions.
        waits: Requested durations of a step, in seconds.
        reps: Repetitions of each batch.
        mode: `ws` or `http`.
        timeout_s: Seconds for each phase of a request, more than the longest wait.
        processes: Number of load processes. None chooses it by the size of each batch.
    """

    requests: Sequence[int]
    waits: Sequence[float]
    reps: int
    mode: Mode
    timeout_s: float
    processes: int | None = None

    def batches(self, url: str | Sequence[str], api_key: str | None = None) -> list[tuple[RequestBatch, int]]:
        """The batches, each with the number of its repetition.

        Args:
            url: Address of the server, or of several.
            api_key: API key of the servers.
        """
        first, *further = [url] if isinstance(url, str) else url
        return [
            (RequestBatch(first, self.mode, sessions, wait, self.timeout_s, tuple(further), api_key), repetition)
            for wait in self.waits
            for sessions in self.requests
            for repetition in range(1, self.reps + 1)
        ]

    def processes_for(self, sessions: int) -> int:
        """Number of load processes for a batch of this size."""
        return self.processes or enough_processes(sessions, raise_file_limit())


@dataclass(slots=True)
class ScaleResult:
    """The result of a measurement.

    Attributes:
        summaries: One summary per batch.
        errors: Number of occurrences of each error, by type and message.
        cores: Number of cores of the servers' machine.
    """

    cores: int
    summaries: list[BatchSummary] = field(default_factory=list)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def max_batches(self) -> dict[float, int]:
        """Size of the largest successful batch by wait, 0 if there is none."""
        waits = sorted({summary.wait_seconds for summary in self.summaries})
        return {wait: max_batch(s for s in self.summaries if s.wait_seconds == wait) for wait in waits}

    def verdicts(self) -> list[str]:
        """The results, one sentence per wait."""
        largest = max(summary.num_requests for summary in self.summaries)
        sentences = []
        for wait, size in self.max_batches.items():
            tried = " (the largest tried)" if size == largest else ""
            sentences.append(
                f"Max batch with a step of {wait:g} s: {size:,}{tried}, {size / self.cores:,.0f} per core."
                if size
                else f"No batch with a step of {wait:g} s had 95 % success in every repetition."
            )
        return sentences + host_sentences(self.summaries)


def check_grid(grid: Grid) -> None:
    """Checks that a grid can be measured on this machine, before the first server starts.

    Raises:
        UsageError: The grid is empty, has too many sessions for the processes, or a timeout below a wait.
        MissingExtra: A package for it is not installed.
    """
    if grid.mode is Mode.HTTP:
        require_httpx()
    if not grid.requests or not grid.waits or grid.reps < 1:
        raise UsageError("there is nothing to measure: set at least one size, one wait and one repetition")
    if min(grid.waits) < 0:
        raise UsageError(f"a step cannot take {min(grid.waits):g} s (--wait-grid)")
    for sessions in grid.requests:
        check_share(sessions, grid.processes_for(sessions), raise_file_limit())
    if grid.timeout_s <= max(grid.waits):
        raise UsageError(f"a wait of {max(grid.waits):g} s needs a longer --timeout than {grid.timeout_s:g} s")


def measure_scale(
    grid: Grid,
    url: str | Sequence[str],
    output_dir: Path,
    *,
    served_by: str,
    api_key: str | None = None,
    command: str = "",
    target: str | None = None,
    cores: int | None = None,
    settle: Callable[[], None] = lambda: None,
    progress: Callable[[RequestBatch, int, LoadCounts], None] = lambda batch, repetition, counts: None,
) -> ScaleResult:
    """Runs all batches of a grid, one after the other.

    Writes `raw.jsonl`, `summary.csv` and `result.json` during the measurement.

    Args:
        grid: The batches, accepted by `check_grid`.
        url: Address of the server, or of several equivalent ones.
        output_dir: Folder for the files. Created if it does not exist.
        served_by: Description of the server.
        api_key: API key of the servers.
        command: The command line of the measurement.
        target: Target of `openenv serve`. None if unknown.
        cores: Number of cores of the servers' machine. None for those of this machine.
        settle: Called before each batch. Returns when the server is idle.
        progress: Called about ten times a second with the current batch and its repetition.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    result = ScaleResult(cores or os.cpu_count() or 1)
    load = {
        "processes": max(map(grid.processes_for, grid.requests)),
        "timeout_s": grid.timeout_s,
        "server_cores": result.cores,
    }
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for batch, repetition in grid.batches(url, api_key):
            settle()
            done = run_batch(batch, grid.processes_for(batch.sessions), partial(progress, batch, repetition))
            write_rows(raw, done.rows)
            raw.flush()
            result.summaries.append(summarize(done.rows, done.wall_s, repetition))
            result.errors += error_counts(done.rows)
            with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as table:
                write_summaries(table, result.summaries)
            document = scale_document(result.summaries, command, target, served_by, load)
            (output_dir / "result.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return result


def scale_document(
    summaries: Sequence[BatchSummary],
    command: str,
    target: str | None,
    served_by: str,
    load: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document that `openenv bench scale` writes to `result.json`. `load` has the options of the load."""
    workload = {"target": target, "mode": summaries[0].mode}
    batches = [{**asdict(summary), "host_spread": summary.host_spread} for summary in summaries]
    return {**document_head("scale", command, workload, served_by), "load": load, "batches": batches}
