"""What a type checker says of users' code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

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


Mypy = Callable[[str], str]


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mypy]:
    """Returns what mypy says of a program. All share a cache: mypy reads openenv and pydantic once."""
    recursion_limit = sys.getrecursionlimit()  # mypy sets a higher one for its process
    folder = tmp_path_factory.mktemp("mypy")
    program = folder / "program.py"

    def check(code: str) -> str:
        program.write_text(code)
        said, failed, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", str(folder), str(program)])
        return said + failed

    yield check
    sys.setrecursionlimit(recursion_limit)


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
def test_overrides_take_the_arguments_that_they_need(mypy: Mypy, methods: str) -> None:
    assert mypy(ENVIRONMENT.format(methods=methods)) == ""


def test_overrides_that_return_something_else_are_errors(mypy: Mypy) -> None:
    methods = """
    def reset(self) -> Place:
        return Place(at=0)

    def step(self, action: Move) -> Move:
        return action
"""
    assert 'Signature of "step" incompatible' in mypy(ENVIRONMENT.format(methods=methods))
