"""The example that trains with Stable-Baselines3, as its readers run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "ppo_cartpole.py"
LIMIT_S = 900


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Its exit code, and the document that it prints in the end."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_three_seeds_learn_to_balance(tmp_path: Path) -> None:
    picture = tmp_path / "ppo.svg"
    code, result = run("--plot", str(picture))
    assert [each["return"] >= 450 for each in result["runs"]] == [True] * 3
    assert [each["seed"] for each in result["runs"]] == [1, 2, 3]
    assert code == 0
    assert 1000 < picture.stat().st_size < 80 * 1024


def test_a_policy_is_the_same_number_for_number_as_without_a_server() -> None:
    code, result = run("--compare", "--steps", "6000", "--seeds", "4")
    ours, theirs = result["runs"]
    assert (ours["return"], ours["deviation"]) == (theirs["return"], theirs["deviation"])
    assert code == (result["worst_return"] < 450)
