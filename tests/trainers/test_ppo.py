"""The example that trains with Stable-Baselines3, as its readers run it, and the path of a new user to there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(1000)]  # trainings, which take longer beside other tests

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ppo_cartpole.py"
LIMIT_S = 900


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Its exit code, and the document that it prints in the end."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_a_new_user_gets_from_the_wheel_to_a_trained_policy() -> None:
    """One seed learns; `make plots` shows three."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "tour.py")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^[\d.]+ s: (.+)$", done.stdout, re.MULTILINE) == [
        "build the wheel",
        "install it",
        "README.md",
        "a class of one's own",
        "PPO to a return of 450",
    ]
    result = json.loads(done.stdout.splitlines()[-3])
    assert [(each["seed"], each["return"] >= 450) for each in result["runs"]] == [(1, True)]


def test_a_policy_is_the_same_number_for_number_as_without_a_server(tmp_path: Path) -> None:
    picture = tmp_path / "ppo.svg"
    code, result = run("--compare", "--steps", "6000", "--seeds", "4", "--plot", str(picture))
    ours, theirs = result["runs"]
    assert (ours["return"], ours["deviation"]) == (theirs["return"], theirs["deviation"])
    assert code == (result["worst_return"] < 450)
    assert 1000 < picture.stat().st_size < 80 * 1024


def test_a_plot_without_matplotlib_is_refused_before_the_training() -> None:
    without = "import runpy, sys; sys.modules['matplotlib'] = None; sys.argv = sys.argv[1:]; "
    script = f"{without}runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", script, str(EXAMPLE), "--plot", "x.svg", "--base-url", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "--plot needs matplotlib: pip install matplotlib"
