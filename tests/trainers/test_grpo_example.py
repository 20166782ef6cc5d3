"""The example that trains a language model by GRPO on the word game: its reward rises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_word_game.py"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "TRL_EXPERIMENTAL_SILENCE": "1", **variables},
    )


def test_the_reward_rises_and_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "reward.svg"
    outcome = run("--steps", "20", "--episodes", "128", "--plot", str(picture))
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    result = json.loads(outcome.stdout.splitlines()[-1])
    assert (result["steps"], result["episodes"]) == (20, 20 * 128)
    # It begins with words of which nearly none is in the game, at 0.1 each, and learns which are.
    assert result["first_reward"] < -0.2
    assert result["last_reward"] > result["first_reward"] + 0.3
    assert picture.read_text(encoding="utf-8").rstrip().endswith("</svg>")
