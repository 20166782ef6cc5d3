"""Records of servers that are killed, that share a folder, and whose disk is full."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import OpenEnvError, UnreadableRecord
from openenv.recording import Recording
from openenv.recording.reader import Damage

from ..cli.process import LIMIT_S, serving
from ..recording.lines import lines_in
from ..server.workers.whereabouts import eventually, whereabouts

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, mounts"),
    pytest.mark.slow,
]

PLAYERS = 8
LOST_S = 1.0

Answers = dict[tuple[str, int], float]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


async def play(url: str, answers: Answers, name: str) -> None:
    """Steps until the server is gone, and notes when each step was answered."""
    try:
        async with GenericEnvClient(url, record=None, message_timeout_s=5.0) as env:
            await env.reset(episode_id=name)
            for step in range(1, 1_000_000):
                await env.step({"message": f"{name} says {step}"})
                answers[name, step] = time.monotonic()
    except OpenEnvError:
        return


async def play_until_killed(url: str, pid: int, seconds: float) -> tuple[Answers, float]:
    answers: Answers = {}
    players = [asyncio.create_task(play(url, answers, f"player-{number}")) for number in range(PLAYERS)]
    async with asyncio.timeout(LIMIT_S):
        while len(answers) <= 50:  # noqa: ASYNC110 - they come by themselves
            await asyncio.sleep(0.01)
    await asyncio.sleep(seconds)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for player in players:
        player.cancel()
    await asyncio.gather(*players, return_exceptions=True)
    return answers, killed


def found_in(folder: Path) -> tuple[set[tuple[str, int]], Damage]:
    """What a reader finds, and what it cannot read."""
    recording, found = Recording(folder), set()
    for episode in recording.episodes():
        assert episode.errors == {}
        found |= {(episode.episode_id, transition.step) for transition in episode.transitions()}
    return found, recording.damage


@pytest.mark.parametrize("seed", [4, 5])
def test_what_was_answered_a_second_before_a_kill_is_on_disk(folder: Path, seed: int) -> None:
    seconds = Random(seed).uniform(1.2, 1.6)
    with serving("echo", "--record", str(folder), OPENENV_RESUME_WINDOW_S="0") as server:
        answers, killed = asyncio.run(play_until_killed(server.url, server.pid, seconds))
    expected = {name for name, at in answers.items() if at < killed - LOST_S}
    assert len(expected) > 50
    found, damage = found_in(folder)
    assert found >= expected
    assert (damage.count, damage.torn in {0, 1}) == (0, True), damage.faults

    def mended() -> bool:
        try:
            again, damage = found_in(folder)
        except UnreadableRecord:  # a file becomes Parquet just now
            return False
        return again == found and damage.count == damage.torn == 0

    with serving("echo", "--record", str(folder)):
        eventually(mended)


def test_workers_and_servers_share_a_folder(tmp_path: Path, folder: Path) -> None:
    target = whereabouts(tmp_path)
    options = ("--record", str(folder))
    with (
        serving(target, "--workers", "2", *options, cwd=tmp_path) as several,
        serving(target, *options, cwd=tmp_path) as one,
    ):
        pids = set()
        for url in [several.url] * 4 + [one.url] * 2:
            with GenericEnvClient(url) as env:
                env.reset(seed=1)
                pids.add(env.step({}).observation["pid"])
        assert len(pids) == 3
        assert one.end(signal.SIGTERM)[0] == several.end(signal.SIGTERM)[0] == 0
    lines = lines_in(folder)
    assert len(list(folder.glob("*.jsonl"))) == 3
    assert {line["observation"]["pid"] for line in lines} == pids
    assert [line["step"] for line in lines].count(0) == 6


def test_sessions_with_processes_of_their_own_and_one_that_is_killed(tmp_path: Path, folder: Path) -> None:
    options = ("--isolation", "process", "--record", str(folder))
    with serving(whereabouts(tmp_path), *options, cwd=tmp_path) as server:
        with GenericEnvClient(server.url) as env:
            pid = env.reset(seed=1).observation["pid"]
            env.step({})
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(OpenEnvError):
                env.step({})
            env.reset(seed=2)
        server.end(signal.SIGTERM)
    lines = lines_in(folder)
    assert [line["step"] for line in lines] == [0, 1, 2, 0]
    assert lines[2]["error"].partition(":")[0] == "EnvironmentCrashed"
    assert lines[3]["episode_id"] != lines[0]["episode_id"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk of its own can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_ends_the_recording_and_nothing_else(small_disk: Path) -> None:
    with serving("echo", "--workers", "2", "--record", str(small_disk)) as server:
        with GenericEnvClient(server.url) as env:
            env.reset()
            rewards = [env.step({"message": "x" * 1000}).reward for _ in range(100)]
            assert "recording into" in server.line()

            def metrics() -> str:
                with urllib.request.urlopen(server.url + "/metrics", timeout=LIMIT_S) as answer:
                    return answer.read().decode()

            eventually(lambda: "openenv_recording_stopped 1.0" in metrics())
            rewards += [env.step({"message": "x" * 1000}).reward for _ in range(100)]
            assert "openenv_records_dropped_total 0.0" not in metrics()
            assert len(set(rewards)) == 1
        code, complaints = server.end(signal.SIGTERM)
    assert code == 0
    assert complaints == ""
    lines = lines_in(small_disk)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 10


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_folder_that_cannot_be_written_is_one_line_before_anything_starts(tmp_path: Path, workers: str) -> None:
    place = tmp_path / "file"
    place.write_text("")
    command = [sys.executable, "-m", "openenv", "serve", "echo", "--port", "0", "--workers", workers]
    command += ["--record", str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"cannot record into {place}: File exists" in line
    assert "OPENENV_RECORD" in line
