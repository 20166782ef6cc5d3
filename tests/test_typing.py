"""What a type checker says of users' code."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.slow

ENVIRONMENT = """
from openenv.environment import Environment
from openenv.types import Action, Observation, State

class Move(Action):
    by: int

class Place(Observation):
    at: int

class Walk(Environment[Move, Place, State]):
{methods}

    @property
    def state(self) -> State:
        return State()
"""


def mypy(tmp_path: Path, code: str) -> str:
    program = tmp_path / "program.py"
    program.write_text(code)
    said, failed, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", str(tmp_path), str(program)])
    return said + failed


@pytest.mark.parametrize(
    "methods",
    [
        """
    def reset(self, seed: int | None = None, words: int = 2) -> Place:
        return Place(at=0)

    def step(self, action: Move) -> Place:
        return Place(at=action.by)
""",
        """
    def reset(self) -> Place:
        return Place(at=0)

    def step(self, action: Move, timeout_s: float | None = None, **kwargs: object) -> Place:
        return Place(at=action.by)
""",
    ],
)
def test_overrides_take_the_arguments_that_they_need(tmp_path: Path, methods: str) -> None:
    assert mypy(tmp_path, ENVIRONMENT.format(methods=methods)) == ""


def test_overrides_that_return_something_else_are_errors(tmp_path: Path) -> None:
    methods = """
    def reset(self) -> Place:
        return Place(at=0)

    def step(self, action: Move) -> Move:
        return action
"""
    assert 'Signature of "step" incompatible' in mypy(tmp_path, ENVIRONMENT.format(methods=methods))
