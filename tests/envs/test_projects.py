"""The environments of envs/, each as its user has it: its tests, its checks under load, its README, its picture."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ENVS = Path(__file__).parent.parent.parent / "envs"
PROJECTS = ("gridworld", "python_sandbox", "reasoning", "repo_repair", "tool_shop", "word_game")
LIMIT_S = 240.0
LARGEST_PICTURE = 60 * 1024
# A reasoning task takes milliseconds to be made, where a step of the others takes microseconds.
LESS = {"reasoning": ("--episodes", "300"), "python_sandbox": ("--sessions", "16", "--episodes", "60")}
LESS["repo_repair"] = LESS["python_sandbox"]

each_project = pytest.mark.parametrize("name", PROJECTS)


def run(*command: str, cwd: Path) -> str:
    """Runs a command that succeeds, and returns what it printed."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def needs(name: str) -> None:
    if name in ("python_sandbox", "repo_repair") and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")


def test_the_projects_are_all_there_are() -> None:
    assert sorted(path.parent.name for path in ENVS.glob("*/openenv.yaml")) == sorted(PROJECTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gridworld", "reasoning", "repo_repair", "word_game"])
def test_its_own_tests_pass(name: str) -> None:
    """Those of the others are run beside what else is asked of them."""
    # What its conformance tests ask is what the checks ask, below.
    options = ("-q", "-p", "no:cacheprovider", "-k", "not TestConformance")
    assert " passed" in run(sys.executable, "-m", "pytest", *options, cwd=ENVS / name)


@pytest.mark.slow
@each_project
def test_it_is_valid_at_level_load(name: str) -> None:
    needs(name)
    command = (sys.executable, "-m", "openenv", "validate", ".", "--level", "load", "--json", *LESS.get(name, ()))
    told = json.loads(run(*command, cwd=ENVS / name))
    assert told["passed"]
    assert [each for each in told["findings"] if each["outcome"] not in {"pass", "skipped"}] == []


@each_project
def test_its_readme_shows_its_reward_curve_and_the_project_says_how_it_was_made(name: str) -> None:
    project = ENVS / name
    readme = (project / "README.md").read_text()
    (picture,) = re.findall(r"!\[[^\]]+\]\((reward_curve\.(?:png|svg))\)", readme)
    assert 2_000 < (project / picture).stat().st_size <= LARGEST_PICTURE
    assert f"python -m {name}.plot" in readme
    assert (project / "plot.py").exists()
    described = tomllib.loads((project / "pyproject.toml").read_text())
    assert "matplotlib" in str(described["project"]["optional-dependencies"])


@each_project
def test_its_files_are_its_packages(name: str) -> None:
    """What an installed project would lack is not found by tests that run in its folder."""
    project = ENVS / name
    tools = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in (name, f"{name}.server"):
        folder = project / tools["package-dir"][package]
        data = [path for pattern in tools.get("package-data", {}).get(package, []) for path in folder.glob(pattern)]
        there = {path for path in folder.rglob("*.*") if path.suffix in {".txt", ".json", ".sql", ".csv"}}
        mine = {
            path for path in there if package.endswith(".server") or "server" not in path.parts[len(project.parts) :]
        }
        assert {path for path in mine if "tests" not in path.parts} <= set(data)
