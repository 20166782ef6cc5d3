"""`openenv bench scale --provider`: launch, balance, measure, remove, in one command."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from openenv.bench.served import ServedProcess
from openenv.cli.bench import app

from ..server.wires import eventually
from .bench_processes import left_of

pytestmark = [pytest.mark.real, pytest.mark.slow]
WAITS = "openenv.envs.benchmark.server.benchmark_environment:AsyncBenchmarkEnvironment"
SMALL = ("--wait-grid", "0", "--reps", "1")
needs_envoy = pytest.mark.skipif(
    importlib.util.find_spec("envoy") is None, reason="Envoy is not installed: pip install 'openenv[gateway]'"
)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the environment of everything has that a test starts, from here on."""
    value = secrets.token_hex(8)
    monkeypatch.setenv("OPENENV_TEST_MARK", value)
    return value


def marked(mark: str) -> list[int]:
    """The processes of a test, but for what Python keeps for the next processes of the load."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            kept = b"multiprocessing.resource_tracker" in (folder / "cmdline").read_bytes()
            if mark.encode() in (folder / "environ").read_bytes() and not kept:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["scale", *map(str, arguments)])


def document(folder: Path) -> dict[str, list[dict[str, dict[str, int]]]]:
    found: dict[str, list[dict[str, dict[str, int]]]] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.parametrize("mode", ["ws", "http"])
def test_replicas_are_launched_and_share_the_load_evenly(tmp_path: Path, mark: str, mode: str) -> None:
    result = run(
        *("--provider", "local", "--target", "benchmark", "--replicas", 2, "--requests-grid", 20, "--mode", mode),
        *("--expected-hosts", 2, "--output-dir", tmp_path, *SMALL),
    )
    assert result.exit_code == 0, result.output
    assert "20 sessions were on 2 hosts, 10 to 10 on each: 0.0 % apart." in result.output
    (batch,) = document(tmp_path)["batches"]
    assert sorted(batch["hosts"].values()) == [10, 10]
    assert document(tmp_path)["server"] == "2 x benchmark on local"
    assert "spread %</th>" in (tmp_path / "report.html").read_text()
    assert left_of(marked(mark)) == []


@needs_envoy
def test_a_gateway_may_stand_before_them(tmp_path: Path, mark: str) -> None:
    result = run(
        *("--provider", "local", "--target", "benchmark", "--replicas", 2, "--gateway", "envoy"),
        *("--requests-grid", 40, "--expected-hosts", 2, "--output-dir", tmp_path, *SMALL),
    )
    assert result.exit_code == 0, result.output
    (batch,) = document(tmp_path)["batches"]
    assert sum(batch["hosts"].values()) == 40
    assert all(name.startswith("openenv-bench-") for name in batch["hosts"])
    assert left_of(marked(mark)) == []


def test_hosts_that_were_not_reached_fail_the_run(tmp_path: Path) -> None:
    result = run(
        *("--provider", "local", "--target", "benchmark", "--requests-grid", 20),
        *("--expected-hosts", 2, "--output-dir", tmp_path, *SMALL),
    )
    assert result.exit_code == 1
    assert "Error: 2 hosts were expected, but 20 sessions (repetition 1) reached 1: " in result.output
    assert (tmp_path / "report.html").is_file()


def test_a_server_that_runs_already_is_asked_with_the_key_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", "control:the-key")
    command = [sys.executable, "-m", "openenv", "serve", "benchmark", "--port", "0"]
    monkeypatch.setenv("OPENENV_API_KEY", "the-key")
    with ServedProcess(command) as server:
        result = run("--url", server.url, "--requests-grid", 3, "--output-dir", tmp_path, *SMALL)
        assert result.exit_code == 0, result.output
        assert "the-key" not in result.output + (tmp_path / "result.json").read_text()


def test_what_cannot_be_launched_leaves_nothing(tmp_path: Path, mark: str) -> None:
    result = run("--provider", "local", "--target", "no_such_module:thing", "--replicas", 2, "--output-dir", tmp_path)
    assert result.exit_code == 1
    assert "no_such_module" in str(result.exception)
    assert left_of(marked(mark)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["launching", "reset 4/4"])
def test_one_that_is_interrupted_leaves_nothing(tmp_path: Path, mark: str, number: int, moment: str) -> None:
    command = [sys.executable, "-m", "openenv", "bench", "scale", "--provider", "local", "--target", WAITS]
    command += ["--replicas", "2", "--wait-grid", "30", "--requests-grid", "4", "--output-dir", str(tmp_path)]
    if importlib.util.find_spec("envoy") is not None:
        command += ["--gateway", "envoy"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        if moment == "launching":
            eventually(lambda: len(marked(mark)) > 1)  # some of what it starts
        found = marked(mark)
        os.killpg(process.pid, number)
        rest = process.stderr.read()
        assert process.wait(20) == 128 + number, rest
    assert not re.search("Traceback|was never", rest), rest
    assert left_of({*found, *marked(mark)}) == []
