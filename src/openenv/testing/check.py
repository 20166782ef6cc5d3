"""One conformance check, and its outcomes: failure, warning, skip. `openenv validate` loads this without the rest."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self


class CheckProblem(Exception):
    """A check found a problem.

    Args:
        saw: The observation with its values, in one line.
        fix: How to fix it.
    """

    def __init__(self, saw: str, fix: str):
        super().__init__(f"{saw} To fix it: {fix}")
        self.saw = saw
        self.fix = fix


class CheckFailure(CheckProblem, AssertionError):
    """A check found a fault. In a test, it is a failure."""


class CheckWarning(CheckProblem, UserWarning):
    """A check found a possible problem, but no fault."""


class CheckSkip(unittest.SkipTest):
    """A check cannot run; the message has the reason. In a test, it is a skip."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        id: Identifier in the form `level.what-is-checked`, as in `runtime.seed`. Its meaning never changes.
        asks: The question in one line, for the table of all checks.
        run: Function or coroutine function that checks a subject and returns its observation, in one line. Raises
            `CheckFailure`, `CheckWarning` or `CheckSkip`; any other exception is a bug of the check.
        needs: Ids of checks that must have passed (or warned) before, in the same run.
    """

    id: str
    asks: str
    run: Callable[[Any], Any]
    needs: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, asks: str, *needs: str) -> Callable[[Callable[[Any], Any]], Self]:
        """Decorator that makes a check from a function."""
        return lambda run: cls(name, asks, run, needs)

    @classmethod
    def all_in(cls, module: Mapping[str, Any]) -> tuple[Self, ...]:
        """The checks among the names of a module, in the order of their definitions."""
        return tuple(value for value in module.values() if isinstance(value, cls))
