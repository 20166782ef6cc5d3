"""`openenv bench sandbox`, with real servers."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from openenv.cli.bench import app
from openenv.providers import LocalProvider

pytestmark = pytest.mark.real
SMALL = ["--workloads", "short", "--memory-scale", "0.1"]


def mine(pid: int) -> list[str]:
    """Servers of a process that are still there."""
    left = asyncio.run(LocalProvider().leftovers())
    return [each.name for each in left if each.owner is not None and each.owner.pid == pid]


@pytest.mark.slow
def test_jobs_run_here_and_are_told_of(tmp_path: Path) -> None:
    arguments = ["sandbox", *SMALL, "--hold-scale", "0.01", "--concurrency", "1,2", "--output-dir", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    jobs = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert [(job["concurrency"], job["success"]) for job in jobs] == [(1, True), (2, True), (2, True)]
    assert all(job["running_s"] >= 0.1 and job["peak_rss_bytes"] > 13 * 2**20 for job in jobs)
    with (tmp_path / "summary.csv").open() as table:
        assert [line["success_rate"] for line in csv.DictReader(table)] == ["1.0", "1.0"]
    assert json.loads((tmp_path / "result.json").read_text())["server"].startswith("local")


def test_jobs_that_fail_are_counted_and_the_command_says_so(tmp_path: Path) -> None:
    arguments = ["sandbox", *SMALL, "--concurrency", "1", "--ready-timeout", "0.001", "--output-dir", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 1
    (job,) = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert job["error_type"] == "NotReady"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "openenv", "bench", "sandbox", *SMALL, "--concurrency", "2"]
    with subprocess.Popen([*command, "--output-dir", str(tmp_path)], stderr=subprocess.PIPE) as bench:
        limit = time.monotonic() + 30
        while len(mine(bench.pid)) < 2:
            assert time.monotonic() < limit
            time.sleep(0.05)
        bench.send_signal(number)
        bench.communicate(timeout=30)
    assert bench.returncode != 0
    assert mine(bench.pid) == []
