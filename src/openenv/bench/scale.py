"""How many sessions at once a server carries: a grid of storms, and what is written about it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..errors import UsageError
from .canvas import require_matplotlib
from .crew import Counts
from .episode import Batch, require_httpx
from .figures import scale_figures
from .file_limit import check_share, enough_processes, raise_file_limit
from .hosts import host_sentences, hosts_tables
from .machine import machine
from .report import Report, Table
from .result import scale_document
from .row import Mode, write_rows
from .storm import storm
from .summary import Summary, error_counts, max_batch, summarize, write_summaries

__all__ = ["Grid", "ScaleResult", "check_grid", "measure_scale"]

ERRORS_SHOWN = 20
_NOTE = (
    "Max batch is the largest number of sessions at once of which at least 95 % succeeded in every repetition. "
    "Latencies are seconds, by nearest rank over the requests that succeeded. Total is connect + reset + step; "
    "the close comes after it. Concurrency is the sum of the totals divided by the wall time."
)
_CAPTIONS = {
    "success_rate.png": "Success rate against the number of sessions",
    "latency.png": "Latency against the number of sessions",
    "max_batch.png": "Max batch",
    "p99_heatmap.png": "P99 by number of sessions and wait",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The batches of a measurement: every size with every wait, `reps` times.

    Attributes:
        requests: Numbers of sessions at once.
        waits: Seconds that a step is asked to take.
        reps: Repetitions of each batch.
        mode: `ws` or `http`.
        timeout_s: Seconds for each phase of a request; more than the longest wait.
        processes: Among which each batch is shared out; None chooses by its size.
    """

    requests: Sequence[int]
    waits: Sequence[float]
    reps: int
    mode: Mode
    timeout_s: float
    processes: int | None = None

    def batches(self, url: str | Sequence[str], api_key: str | None = None) -> list[tuple[Batch, int]]:
        """What to do, each with the number of its repetition.

        Args:
            url: Address of the server, or of several.
            api_key: The key that they ask for.
        """
        first, *further = [url] if isinstance(url, str) else url
        return [
            (Batch(first, self.mode, sessions, wait, self.timeout_s, tuple(further), api_key), repetition)
            for wait in self.waits
            for sessions in self.requests
            for repetition in range(1, self.reps + 1)
        ]

    def processes_for(self, sessions: int) -> int:
        """Processes of the load for a batch of this size."""
        return self.processes or enough_processes(sessions, raise_file_limit())


@dataclass(slots=True)
class ScaleResult:
    """What was measured.

    Attributes:
        summaries: One a batch.
        errors: How often each error came, by type and message.
        cores: Of the machine that served.
    """

    cores: int
    summaries: list[Summary] = field(default_factory=list)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def max_batches(self) -> dict[float, int]:
        """The largest batch that was carried, by wait; 0 if none was."""
        waits = sorted({summary.wait_seconds for summary in self.summaries})
        return {wait: max_batch(s for s in self.summaries if s.wait_seconds == wait) for wait in waits}

    def verdicts(self) -> list[str]:
        """What was found, a sentence a wait."""
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
    """Whether a grid can be measured here, before anything is started.

    Raises:
        UsageError: An empty grid, more sessions than the processes can have, or a deadline within the wait.
        MissingExtra: A package for it is not installed.
    """
    require_matplotlib()
    if grid.mode is Mode.HTTP:
        require_httpx()
    if not grid.requests or not grid.waits or grid.reps < 1:
        raise UsageError("there is nothing to measure: give at least one size, one wait and one repetition")
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
    progress: Callable[[Batch, int, Counts], None] = lambda batch, repetition, counts: None,
) -> ScaleResult:
    """Does all batches of a grid, one after the other.

    Writes `raw.jsonl`, `summary.csv` and `result.json` as it goes, then the pictures and `report.html`.

    Args:
        grid: What to do; `check_grid` has accepted it.
        url: Address of the server, or of several that do the same.
        output_dir: Where to write; made if it is not there.
        served_by: What the server is, in words for the report.
        api_key: The key that it asks for.
        command: What was typed to measure it.
        target: What is served, as `openenv serve` takes it; None if it is not known.
        cores: Of the machine that serves; those of this one if None.
        settle: Called before each batch; returns when the server is idle again.
        progress: Called about ten times a second with the batch under way and its repetition.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    result = ScaleResult(cores or os.cpu_count() or 1)
    with (output_dir / "raw.jsonl").open("w", encoding="utf-8") as raw:
        for batch, repetition in grid.batches(url, api_key):
            settle()
            done = storm(batch, grid.processes_for(batch.sessions), partial(progress, batch, repetition))
            write_rows(raw, done.rows)
            raw.flush()
            result.summaries.append(summarize(done.rows, done.wall_s, repetition))
            result.errors += error_counts(done.rows)
            with (output_dir / "summary.csv").open("w", encoding="utf-8", newline="") as table:
                write_summaries(table, result.summaries)
            document = scale_document(result.summaries, command, target, served_by)
            (output_dir / "result.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    pictures = scale_figures(result.summaries, result.cores)
    for name, png in pictures.items():
        (output_dir / name).write_bytes(png)
    report = _report(result, grid, served_by, {_CAPTIONS[name]: png for name, png in pictures.items()})
    (output_dir / "report.html").write_text(report.html(), encoding="utf-8")
    return result


def _report(result: ScaleResult, grid: Grid, served_by: str, pictures: dict[str, bytes]) -> Report:
    return Report(
        title="How many sessions at once",
        lead=" ".join(result.verdicts()),
        facts={
            "server": served_by,
            "cores of the server": str(result.cores),
            "mode": grid.mode,
            "load": f"{max(map(grid.processes_for, grid.requests))} process(es), {grid.timeout_s:g} s for each phase",
            **{f"{name} (load)": value for name, value in machine().items()},
        },
        tables=[_table(result.summaries), *hosts_tables(result.summaries), _errors(result.errors)],
        pictures=pictures,
    )


def _table(summaries: Sequence[Summary]) -> Table:
    header = ["sessions", "wait s", "rep.", "success %", "wall s"]
    header += [f"{phase} {name.upper()}" for phase in ("connect", "reset", "step") for name in ("p50", "p95", "p99")]
    header += [f"total {name}" for name in ("P50", "P90", "P95", "P99")]
    header += ["sessions/s", "concurrency", "processes", "hosts"]
    return Table("All batches", header, [_line(summary) for summary in summaries], _NOTE)


def _line(summary: Summary) -> list[str]:
    phases = [getattr(summary, f"{p}_{q}") for p in ("connect", "reset", "step") for q in ("p50", "p95", "p99")]
    totals = [summary.total_p50, summary.total_p90, summary.total_p95, summary.total_p99]
    return [
        f"{summary.num_requests:,}",
        f"{summary.wait_seconds:g}",
        str(summary.repetition),
        f"{100 * summary.successful / summary.num_requests:.2f}",
        f"{summary.total_wall_time:.2f}",
        *("-" if value is None else f"{value:.3f}" for value in phases + totals),
        f"{summary.requests_per_second:,.0f}",
        f"{summary.effective_concurrency:,.0f}",
        str(summary.unique_pids),
        str(summary.unique_hosts),
    ]


def _errors(errors: Counter[tuple[str, str]]) -> Table:
    rows = [[kind, message, f"{count:,}"] for (kind, message), count in errors.most_common(ERRORS_SHOWN)]
    return Table("Failures", ["error", "message", "requests"], rows, "The most frequent ones.")
