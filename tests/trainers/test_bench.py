"""Measurements with real environments, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
SHORT = ("--rounds", "1", "--duration", "0.1")


def run(*command: str) -> dict[str, Any]:
    """The document that a command prints in the end."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("env_id", "size"),
    [("ALE/Pong-v5", 84 * 84 * 4), ("MiniGrid-Empty-8x8-v0", 56 * 56 * 3), ("InvertedPendulum-v5", 4 * 8)],
)
def test_frames_of_real_environments_are_measured(env_id: str, size: int) -> None:
    small = ("--envs", "2", "--workers", "1", *SHORT)
    found = run("-m", "openenv", "bench", "frames", "--env", env_id, *small, "--json")
    assert found["memory"]["arrays"] == 2 * size
    assert found["ratios"]["AsyncVectorEnv"] > 0


def test_worlds_of_mujoco_are_measured() -> None:
    found = run("-m", "openenv", "bench", "batched", "--world", "pendulums", "--envs", "3", *SHORT, "--json")
    assert list(found["systems"]) == ["openenv", "RemoteVectorEnv", "bare socket", "in process"]


def test_ppo_trains_on_served_games_and_in_process() -> None:
    found = run("scripts/bench_ppo.py", "--envs", "2", "--workers", "1", "--rounds", "1", "--steps", "256")
    (served,), (local,) = found["seconds"]["served"], found["seconds"]["in process"]
    assert found["ratio"] == pytest.approx(served / local)
