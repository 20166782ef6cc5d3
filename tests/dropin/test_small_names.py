"""What smaller public names do is the same under the released package and here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .installation import HERE, PEER_PYTHON, PROJECT

PROGRAM = HERE / "peer_scripts/small_names.py"
CASES = re.findall(r"^@case\ndef (\w+)", PROGRAM.read_text(encoding="utf-8"), re.MULTILINE)
LIMIT_S = 120.0

pytestmark = [pytest.mark.real, pytest.mark.slow]


def outcome(*command: str | Path) -> dict[str, Any]:
    ended = subprocess.run(
        [str(each) for each in command], cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    if not PEER_PYTHON.exists():
        pytest.skip("the released package is not installed: make .venv-peer/.installed")
    return outcome(PEER_PYTHON, PROGRAM)


@pytest.fixture(scope="module")
def ours(theirs: dict[str, Any]) -> dict[str, Any]:
    return outcome(sys.executable, PROGRAM, *PEER_PYTHON.parents[1].glob("lib/python*/site-packages"))


@pytest.mark.parametrize("case", CASES)
def test_a_name_does_the_same_in_both(theirs: dict[str, Any], ours: dict[str, Any], case: str) -> None:
    assert ours[case] == theirs[case]
