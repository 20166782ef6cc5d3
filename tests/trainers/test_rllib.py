"""The example that trains with RLlib, as its readers run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "rllib_cartpole.py"
LIMIT_S = 600


def test_the_return_rises(tmp_path: Path) -> None:
    picture = tmp_path / "rllib.svg"
    arguments = ["--iterations", "6", "--runners", "1", "--plot", str(picture)]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["last"][1] > 2 * result["first"][1]
    assert picture.stat().st_size < 80 * 1024
