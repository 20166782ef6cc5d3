"""One conformance check, and its outcomes: failure, warning, skip. `openenv validate` loads this without the rest."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self


class CheckFailure(AssertionError):
    """A check found something wrong; a test that meets it fails.

    Args:
        saw: What was seen, in one line, with the values.
        fix: What to do about it.
    """

    def __init__(self, saw: str, fix: str):
        super().__init__(f"{saw} To fix it: {fix}")
        self.saw = saw
        self.fix = fix


class CheckWarning(UserWarning):
    """A check found a possible problem, but no fault. The arguments are those of `CheckFailure`."""

    def __init__(self, saw: str, fix: str):
        super().__init__(f"{saw} To fix it: {fix}")
        self.saw = saw
        self.fix = fix


class CheckSkip(unittest.SkipTest):
    """The question cannot be put; the message says why. A test that meets it is skipped."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question.

    Attributes:
        id: `level.what-is-asked`, as in `runtime.seed`; it never changes its meaning.
        asks: The question in one line, for the table of all checks.
        run: Takes what is looked at, and returns what it saw if all is well; or is a coroutine function that does.
            Raises `CheckFailure`, `CheckWarning` or `CheckSkip`; any other exception is an error of the check itself.
        needs: Ids of checks that must have passed (or warned) before, in the same run.
    """

    id: str
    asks: str
    run: Callable[[Any], Any]
    needs: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, asks: str, *needs: str) -> Callable[[Callable[[Any], Any]], Self]:
        """Makes the decorated function a check."""
        return lambda run: cls(name, asks, run, needs)
