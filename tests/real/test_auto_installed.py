"""Environments that a real installer put into a real virtual environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from uv import find_uv_bin

from ..auto.distributions import wheel

pytestmark = pytest.mark.real

LIMIT_S = 60.0
LOOK = """
import sys
from openenv import AutoAction, AutoEnv
print(AutoEnv.get_env_class("maze"), AutoAction.from_env("openenv-maze-env"), AutoEnv.get_env_info("maze")["version"])
"""


def run(*command: str | Path) -> str:
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_wheel_is_found_when_it_is_installed_and_no_more_when_it_is_removed(tmp_path: Path) -> None:
    uv, venv = find_uv_bin(), tmp_path / "venv"
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    # What this interpreter has, itself included, without installing it again.
    (site,) = (venv / "lib").glob("python*/site-packages")
    ours = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2] / "src")]
    (site / "borrowed.pth").write_text("\n".join(ours) + "\n")
    run(uv, "pip", "install", "--python", python, "--offline", "--no-deps", "--no-index", wheel(tmp_path))
    found = "<class 'maze_env.client.MazeEnv'> <class 'maze_env.models.MazeAction'> 0.1.0"
    assert run(python, "-c", LOOK) == found
    run(uv, "pip", "uninstall", "--python", python, "openenv-maze_env")
    ended = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "UnknownEnvironment" in ended.stderr
