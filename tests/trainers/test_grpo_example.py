"""The example that trains a language model by GRPO through rollouts, and the path from a class to its curve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openenv.rollouts import read_rollouts

pytestmark = [pytest.mark.real, pytest.mark.timeout(1000)]  # trainings, which take longer beside other tests

ROOT = Path(__file__).parents[2]


def run(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(("environment", "least"), [("word_game", 0.3), ("tool_shop", 0.05)])
def test_the_return_rises_and_is_drawn(tmp_path: Path, environment: str, least: float) -> None:
    picture, records = tmp_path / "curve.svg", tmp_path / "runs"
    records.mkdir()
    example = ROOT / "examples" / "grpo_rollouts.py"
    printed = run(example, environment, "--steps", "10", "--plot", picture, "-o", records)
    result = json.loads(printed.splitlines()[-1])
    assert (result["steps"], result["rollouts"]) == (10, 1280)
    assert result["last_reward"][0] > result["first_reward"][0] + least
    assert picture.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    recorded = [rollout for folder in records.iterdir() for rollout in read_rollouts(folder)]
    assert len(recorded) == 1280
    assert {turn.tokens for rollout in recorded for turn in rollout.turns} == {"sampled"}
    assert {turn.prefix_break for rollout in recorded for turn in rollout.turns} == {None}


def test_from_a_class_to_a_rising_curve_and_its_page(tmp_path: Path) -> None:
    run(ROOT / "scripts" / "class_to_curve.py", tmp_path / "new")
    assert (tmp_path / "new" / "curve.svg").exists()
