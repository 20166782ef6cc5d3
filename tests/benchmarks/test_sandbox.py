"""Figures of jobs: rows, summaries, files and tables."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.sandbox import (
    WORKLOADS,
    JobBatch,
    JobSummary,
    SandboxJob,
    SandboxPlan,
    document,
    spec_for,
    summarize,
    write_jobs,
    write_summaries,
)
from benchmarks.tables import job_table, stage_table
from openenv.cli.bench import app
from openenv.cli.display import console
from openenv.errors import UsageError
from openenv.providers import LocalDockerProvider, LocalProvider, UVProvider


def done(number: int, scheduling: float, running: float, peak: int = 100 * 2**20) -> SandboxJob:
    return SandboxJob("short", 2, number, 1.0, 1.0 + scheduling, 1.0 + scheduling + running, 20.0, 0.5, peak)


def failed(number: int) -> SandboxJob:
    return SandboxJob("short", 2, number, 1.0, 3.0, error_type="LaunchFailed", error_message="no room")


def test_the_published_workloads() -> None:
    found = [(each.name, each.hold_s, each.megabytes) for each in WORKLOADS.values()]
    assert found == [("short", 10.0, 128), ("medium", 45.0, 512), ("long", 120.0, 1024)]


def test_a_workload_is_scaled_but_never_to_no_memory() -> None:
    small = WORKLOADS["short"].scaled(0.01, 0.001)
    assert (small.hold_s, small.megabytes) == (0.1, 1)


def test_a_batch_is_summed_up_over_the_jobs_that_succeeded() -> None:
    summary = summarize([done(1, 1.0, 10.0), done(2, 2.0, 12.0, 200 * 2**20), failed(3)], 30.0)
    assert (summary.jobs, summary.successful, summary.success_rate) == (3, 2, pytest.approx(2 / 3))
    assert (summary.scheduling_p50, summary.scheduling_p95) == (1.0, 2.0)
    assert (summary.running_p50, summary.running_p95) == (10.0, 12.0)
    assert (summary.total_p50, summary.total_p95) == (11.0, 14.0)
    assert (summary.jobs_per_minute, summary.average_peak_rss_mb) == (4.0, 150.0)
    assert (summary.first_running_s, summary.all_done_s, summary.allocation_mean_s) == (2.0, 15.0, 0.5)


def test_a_batch_without_success_has_no_latencies() -> None:
    summary = summarize([failed(1)], 5.0)
    assert (summary.successful, summary.total_p50, summary.average_peak_rss_mb) == (0, None, None)
    assert summary.first_running_s is None


def test_files_have_a_line_a_job_and_a_line_a_batch() -> None:
    raw, table = io.StringIO(), io.StringIO()
    write_jobs(raw, [done(1, 1.0, 10.0), failed(2)])
    first, second = map(json.loads, raw.getvalue().splitlines())
    assert (first["success"], first["total_s"]) == (True, 11.0)
    assert (second["success"], second["total_s"], second["error_message"]) == (False, None, "no room")
    write_summaries(table, [summarize([failed(2)], 5.0)])
    (line,) = csv.DictReader(io.StringIO(table.getvalue()))
    assert list(line) == JobSummary.columns()
    assert line["total_p50"] == ""


def test_the_result_says_all_that_must_be_known() -> None:
    told = document([summarize([done(1, 1, 1)], 5.0)], WORKLOADS.values(), "openenv bench sandbox", "local")
    assert json.loads(json.dumps(told))["workload"]["long"] == {"name": "long", "hold_s": 120.0, "megabytes": 1024}
    assert (told["bench"], told["server"], len(told["batches"])) == ("sandbox", "local", 1)


def test_the_tables_have_the_published_columns() -> None:
    screen = console()
    with screen.capture() as captured:
        screen.print(job_table([summarize([done(1, 1, 10), failed(2)], 30.0), summarize([failed(1)], 1.0)]))
        screen.print(job_table([summarize([done(1, 1000, 10000, 10**11)], 30000.0)]))
        screen.print(stage_table([summarize([done(1, 1, 10)], 30.0)]))
    text = captured.get()
    for words in ("success", "wall", "scheduling", "running", "total", "P50", "P95", "/min", "RSS MB"):
        assert words in text
    for words in ("first running", "all done", "allocation mean"):
        assert words in text
    assert "…" not in text


def test_a_plan_has_every_workload_at_every_concurrency() -> None:
    short, long = WORKLOADS["short"], WORKLOADS["long"]
    assert SandboxPlan([short, long], [1, 4]).batches == [
        JobBatch(short, 1, 1),
        JobBatch(short, 4, 4),
        JobBatch(long, 1, 1),
        JobBatch(long, 4, 4),
    ]
    assert [batch.jobs for batch in SandboxPlan([short], [1, 8], jobs=6).batches] == [6, 8]


@pytest.mark.parametrize(("workloads", "concurrencies"), [([], [1]), (["short"], []), (["short"], [0])])
def test_a_plan_without_anything_to_do_is_refused(workloads: list[str], concurrencies: list[int]) -> None:
    with pytest.raises(UsageError):
        SandboxPlan([WORKLOADS[name] for name in workloads], concurrencies)


def test_every_place_is_told_what_it_can_start() -> None:
    assert spec_for(LocalProvider(), None).target == "openenv.bench.holder:Holder"
    assert spec_for(UVProvider(), None).form == "command"
    with pytest.raises(UsageError, match="--image"):
        spec_for(LocalProvider(), "image")


def test_a_place_for_images_needs_one() -> None:
    place = object.__new__(LocalDockerProvider)  # none is asked for: there may be no Docker here
    if "command" not in place.capabilities.forms:
        with pytest.raises(UsageError, match="--image"):
            spec_for(place, None)
    spec = spec_for(place, "image")
    assert (spec.image, spec.command) == ("image", ["openenv", "serve", "openenv.bench.holder:Holder"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--provider", "moon"], "no provider 'moon'"),
        (["--workloads", "short,huge"], "no workload 'huge'"),
        (["--concurrency", "1,many"], "--concurrency is '1,many'"),
        (["--concurrency", "0"], "--concurrency"),
        (["--hold-scale", "-1"], "--hold-scale"),
        (["--memory-scale", "0"], "--memory-scale"),
        (["--image", "image"], "leave out --image"),
        (["--provider-option", "workers"], "NAME=VALUE"),
        (["--provider-option", "token=hf_abcdefgh"], "token: every user of this machine can read a command line"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["sandbox", *arguments])
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message


def test_why_jobs_failed_is_on_the_screen(tmp_path: Path) -> None:
    some = ["--workloads", "short", "--hold-scale", "0", "--concurrency", "2", "--output-dir", str(tmp_path)]
    result = CliRunner().invoke(app, ["sandbox", *some, "--option", "colour=red"])
    assert result.exit_code == 1
    assert "2 x UsageError: colour: unknown settings" in result.output
