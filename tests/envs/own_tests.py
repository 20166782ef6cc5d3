"""The tests that a project of envs/ has itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["ENVS", "run_own_tests"]

ENVS = Path(__file__).parents[2] / "envs"
LIMIT_S = 300.0


def run_own_tests(name: str, *options: str) -> int:
    """Runs them as the project's author does, in its folder.

    What its conformance tests ask, `openenv validate` asks too: they are left out.

    Returns:
        How many passed.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"),
            *("-k", "not TestConformance", *options),
        ],
        cwd=ENVS / name,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    return int(found[1]) if found else 0
