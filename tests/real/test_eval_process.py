"""`openenv eval` as a process that is interrupted, and evaluations whose server loses a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openenv.evals.evaluation import evaluate

from ..cli.process import END_S, serving
from .bench_processes import children_of, left_of

pytestmark = pytest.mark.real

EVALS = Path(__file__).parent.parent / "evals"
# Six episodes are played, and the others never end: `wait` is how.
POLICY = """
import asyncio, os, sys, time

begun = 0

class Stuck:
    def __init__(self):
        global begun
        begun += 1
        self.number = begun

    {act} act(self, observation):
        if self.number > 6:
            print("stuck", file=sys.stderr, flush=True)
            {wait}
        return {{"message": "x"}}
"""
ASYNC = {"act": "async def", "wait": "await asyncio.sleep(1000)"}
BLOCKING = {"act": "def", "wait": "time.sleep(1000)"}


@pytest.mark.parametrize("how", [ASYNC, BLOCKING], ids=["waiting", "blocking"])
def test_ctrl_c_tells_what_was_found_and_leaves_nothing_behind(tmp_path: Path, how: Mapping[str, str]) -> None:
    (tmp_path / "policy.py").write_text(POLICY.format(**how))
    command = [sys.executable, "-m", "openenv", "eval", "echo", "--policy", "policy:Stuck", "--episodes", "20"]
    command += ["--concurrency", "1", "--max-steps", "2", "-o", "result.json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == "stuck\n":
                break
        served = children_of(process.pid)
        assert served
        process.send_signal(signal.SIGINT)
        output, complaints = process.communicate(timeout=END_S)
    assert process.returncode == 130, complaints
    assert "interrupted after 6 of 20 episodes" in output
    assert "Traceback" not in complaints
    assert left_of(served) == []
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["interrupted"] is True
    assert len(result["episodes"]) == result["summary"]["scored"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_its_server_though_the_policy_is_stuck(tmp_path: Path, number: int) -> None:
    (tmp_path / "policy.py").write_text(POLICY.format(**BLOCKING))
    command = [sys.executable, "-m", "openenv", "eval", "echo", "--policy", "policy:Stuck", "--concurrency", "1"]
    with subprocess.Popen(
        [*command, "--max-steps", "1"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == "stuck\n":
                break
        served = children_of(process.pid)
        assert served
        process.send_signal(number)
        try:
            _, complaints = process.communicate(timeout=END_S)
        finally:
            process.kill()
    assert process.returncode == 128 + number, complaints
    assert left_of(served) == []


@pytest.mark.slow
async def test_episodes_of_a_worker_that_dies_are_played_again_with_the_same_seeds() -> None:
    steps = 0

    async def act(observation: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal steps
        steps += 1
        if steps == 500:
            os.kill(worker, signal.SIGKILL)
        return {"stop": False}

    with serving("environments:Dice", "--workers", "2", cwd=EVALS) as server:
        worker = next(pid for pid in server.group() if pid != server.pid and not children_of(pid))
        report = await evaluate(act, range(200), server.url, concurrency=16)
        calm = await evaluate(act, range(200), server.url, concurrency=3)
    assert report.summary.scored == 200, report.summary.examples
    assert 1 <= report.summary.repeated <= 16
    assert [episode.score for episode in report.episodes] == [episode.score for episode in calm.episodes]
