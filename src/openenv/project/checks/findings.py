"""Run checks and record their findings."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, computed_field

from ...errors import NotAProject, OpenEnvError
from ...testing.check import Check, CheckFailure, CheckSkip, CheckWarning


class Level(StrEnum):
    """The levels of checks; each includes the levels before it, except that semantic includes of them only what it
    needs. `URL` is for servers of any implementation."""

    STATIC = "static"
    RUNTIME = "runtime"
    LOAD = "load"
    SEMANTIC = "semantic"
    URL = "url"


class Outcome(StrEnum):
    """The outcome of a check. Only `FAIL` fails the report; `saw` of a skipped check has the reason."""

    PASS = "pass"  # noqa: S105 - the name of an outcome
    WARNING = "warning"
    FAIL = "fail"
    SKIPPED = "skipped"


class Finding(BaseModel):
    """The finding of one check.

    Attributes:
        check: The id of the check, in the form `level.what-is-checked`, as in `runtime.seed`. An id never changes its
            meaning.
        level: The level of the check.
        outcome: Its outcome.
        saw: The observation, in one line: the values, the file and the line.
        mend: How to fix it. None if there is nothing to fix.
        seconds: Duration in seconds.
    """

    model_config = ConfigDict(frozen=True)

    check: str
    level: Level
    outcome: Outcome
    saw: str
    mend: str | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, check: Check, outcome: Outcome, saw: str, mend: str | None = None, seconds: float = 0.0) -> Self:
        """A finding, with the id and the level of its check."""
        return cls(check=check.id, level=level_of(check), outcome=outcome, saw=saw, mend=mend, seconds=seconds)


def level_of(check: Check) -> Level:
    """The level of a check: the first part of its id."""
    return Level(check.id.partition(".")[0])


class ValidationReport(BaseModel):
    """The report that `openenv validate` prints, and writes with `--json`.

    Attributes:
        target: The checked target: a folder or an address.
        findings: Findings in the order of the checks.
        passed: Whether all checks passed, warned or were skipped.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    findings: list[Finding]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return not any(finding.outcome is Outcome.FAIL for finding in self.findings)


_FINE = (Outcome.PASS, Outcome.WARNING)


class InternalFault(Exception):
    """A bug in a check: an error of this package, not of the checked environment.

    Args:
        check: The id of the check.
        reason: Its exception.
    """

    def __init__(self, check: str, reason: str):
        super().__init__(f"the check {check} has a bug (an error of openenv, please report it): {reason}")
        self.check = check
        self.reason = reason


def run(checks: Iterable[Check], subject: Any, heard: Callable[[Finding], None] = lambda _: None) -> list[Finding]:
    """Runs checks on a subject, one after the other.

    Args:
        checks: Checks in their order. A check is skipped if one of its `needs` has failed.
        subject: Argument of each check.
        heard: Called with each finding as soon as it exists.

    Raises:
        InternalFault: A check raised an unexpected exception.
    """
    found: dict[str, Finding] = {}
    for check in checks:
        found[check.id] = skip_finding(check, found) or ask(check, lambda: subject)
        heard(found[check.id])
    return list(found.values())


def skip_finding(check: Check, found: dict[str, Finding]) -> Finding | None:
    """The finding of a check that is skipped because a check that it needs has not passed; None if it can run.

    Args:
        check: The check.
        found: The findings so far, by id.
    """
    for name in check.needs:
        if name not in found:
            return Finding.of(check, Outcome.SKIPPED, f"it needs {name}, which did not run")
        if found[name].outcome not in _FINE:
            outcome = "failed" if found[name].outcome is Outcome.FAIL else "was skipped"
            return Finding.of(check, Outcome.SKIPPED, f"it needs {name}, which {outcome}")
    return None


def ask(
    check: Check,
    subject: Callable[[], Any],
    complete: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
) -> Finding:
    """Runs one check.

    Args:
        check: The check.
        subject: Returns the argument of the check, or raises `CheckSkip`.
        complete: Runs the check to its end if it is a coroutine function.

    Raises:
        InternalFault: The check raised an unexpected exception.
    """
    began = time.perf_counter()
    outcome, fix = Outcome.PASS, None
    try:
        saw = check.run(subject())
        if inspect.iscoroutine(saw):
            saw = complete(saw)
    except CheckFailure as error:
        outcome, saw, fix = Outcome.FAIL, error.saw, error.fix
    except CheckWarning as error:
        outcome, saw, fix = Outcome.WARNING, error.saw, error.fix
    except CheckSkip as error:
        outcome, saw = Outcome.SKIPPED, error
    except NotAProject:
        raise
    except OpenEnvError as error:  # the subject caused it, and no check expected it
        outcome, saw, fix = Outcome.FAIL, f"{type(error).__name__}: {error.message}.", "see the message"
    except Exception as error:
        raise InternalFault(check.id, f"{type(error).__name__}: {error}") from error
    return Finding.of(check, outcome, str(saw), fix, time.perf_counter() - began)
