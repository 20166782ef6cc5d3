"""envs/python_sandbox: its own tests, and what it does as a served environment."""

from __future__ import annotations

import shutil

import pytest

from .own_tests import ENVS, run_own_tests

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap"),
    pytest.mark.slow,
]


def test_what_it_promises_holds() -> None:
    assert run_own_tests("python_sandbox", "tests/test_environment.py", "tests/test_walls.py") >= 30


def test_every_attempt_to_get_out_of_it_is_contained() -> None:
    attempts = len(list((ENVS / "python_sandbox" / "tests" / "escapes").glob("*.py")))
    assert attempts >= 30
    assert run_own_tests("python_sandbox", "tests/test_escapes.py") > attempts
