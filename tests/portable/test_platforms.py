"""openenv where Linux's extras are taken away (`sitecustomize.py` here): its modules, and servers as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import EnvironmentCrashed
from openenv.recording import Recording

from ..cli.process import serving
from ..runtime.process.wild import gone

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLATFORMS = ["macos", "windows"]
# Each session process imports the environment, also on a busy machine.
START_S = 60.0


@pytest.fixture(params=PLATFORMS)
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables that take a platform's absent parts away from a process."""
    path = os.pathsep.join([str(HERE), str(ROOT)])
    return {"OPENENV_TEST_PLATFORM": request.param, "PYTHONPATH": path}


def openenv(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openenv", *arguments]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_every_module_can_be_imported(variables):
    command = [sys.executable, "-W", "ignore", "-m", "tests.portable.every_module"]
    ran = subprocess.run(command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, check=False)
    count, *failed = ran.stdout.splitlines() or [ran.stderr]
    assert failed == []
    assert int(count) > 400, ran.stderr


@pytest.mark.real
def test_a_server_plays_records_and_shows_its_page(variables, tmp_path):
    with serving("echo", "--record", str(tmp_path), **variables) as server:
        with GenericEnvClient(base_url=server.url).sync() as client:
            client.reset()
            assert client.step({"message": "hello"}).observation["echoed_message"] == "hello"
        with VectorEnvClient(GenericEnvClient, server.url, num_envs=8).sync() as vector:
            vector.reset()
            results = vector.step([{"message": str(number)} for number in range(8)])
            assert [each.observation["echoed_message"] for each in results] == [str(number) for number in range(8)]
        assert server.get("/health")["status"] == "healthy"
        assert server.end(signal.SIGTERM)[0] == 0
    assert sum(episode.steps for episode in Recording(tmp_path).episodes()) == 9


@pytest.mark.real
def test_isolated_sessions_are_processes_that_end_alone(variables):
    with serving("tests.runtime.process.wild:Wild", "--isolation", "process", cwd=ROOT, **variables) as server:
        first, second = (GenericEnvClient(base_url=server.url, message_timeout_s=START_S).sync() for _ in range(2))
        with first, second:
            pids = [each.reset().observation["metadata"]["pid"] for each in (first, second)]
            assert pids[0] != pids[1]
            with pytest.raises(EnvironmentCrashed) as crash:
                first.step({"metadata": {"do": "leave", "code": 9, "words": "last words"}})
            assert (crash.value.exit_code, crash.value.stderr) == (9, "last words")
            assert second.step({"metadata": {}}).reward == 1.0
            assert first.reset().observation["metadata"]["pid"] not in pids
            server.end(signal.SIGKILL)
            asyncio.run(gone(*pids))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2"], "--workers 2 needs Linux"),
        (["--isolation", "process", "--sandbox", "bwrap"], "sandbox bwrap needs Linux"),
    ],
)
def test_what_needs_linux_is_refused_with_the_next_step(variables, arguments, message):
    ran = openenv("serve", "echo", "--port", "0", *arguments, **variables)
    assert ran.returncode != 0
    assert message in ran.stderr.replace("\n", " ")


def test_windows_limits_no_memory_of_a_process():
    variables = {"OPENENV_TEST_PLATFORM": "windows", "PYTHONPATH": str(HERE)}
    arguments = ["--isolation", "process", "--process-memory-mb", "500"]
    ran = openenv("serve", "echo", "--port", "0", *arguments, **variables)
    assert "unset process_memory_mb" in ran.stderr.replace("\n", " ")
