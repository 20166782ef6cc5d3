"""What tests get in place of a Python process that starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .warm import WarmPython

PROGRAM = """
import os, sys

numbers = [int(each) for each in sys.argv[1:]]
others = set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, *numbers}
assert len(others) == 1, others  # which lists them
for each in numbers:
    os.write(each, f"{each} ".encode())
"""


@pytest.mark.parametrize("first", [3, 100, 200, 1000])
def test_a_fork_has_its_descriptors_whatever_their_numbers(tmp_path: Path, first: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    reading, writing = os.pipe()
    numbers = range(first, first + 6)
    with WarmPython() as python:
        process = python.run(str(program), *map(str, numbers), descriptors=dict.fromkeys(numbers, writing))
        os.close(writing)
        assert process.wait() == 0
    with os.fdopen(reading) as said:
        assert said.read().split() == [str(each) for each in numbers]
