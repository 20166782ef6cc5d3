"""Run checks and record their findings."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, computed_field

from ...errors import NotAProject, OpenEnvError
from ...testing.check import Check, CheckFailure, CheckSkip, CheckWarning


class Level(StrEnum):
    """The levels of checks; each level includes those before it. `URL` is for servers of any implementation."""

    STATIC = "static"
    RUNTIME = "runtime"
    LOAD = "load"
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


def run(
    checks: Iterable[Check], subject: Any, level: Level, heard: Callable[[Finding], None] | None = None
) -> list[Finding]:
    """Runs checks on a subject, one after the other.

    Args:
        checks: Checks in their order. A check is skipped if one of its `needs` has failed.
        subject: Argument of each check.
        level: Level of all checks.
        heard: Called with each finding as soon as it exists.

    Raises:
        InternalFault: A check raised an unexpected exception.
    """
    found: dict[str, Finding] = {}
    for check in checks:
        finding = skip_finding(check, found, level) or ask(check, lambda: subject, level)
        found[check.id] = finding
        if heard is not None:
            heard(finding)
    return list(found.values())


def skip_finding(check: Check, found: dict[str, Finding], level: Level, known: bool = False) -> Finding | None:
    """The finding of a check that is skipped because a check that it needs has not passed; None if it can run.

    Args:
        check: The check.
        found: The findings so far, by id.
        level: Level of the check.
        known: Whether to ignore needed checks that have not run yet.
    """
    for name in check.needs:
        if known and name not in found:
            continue
        if name not in found or found[name].outcome not in _FINE:
            outcome = "did not run"
            if name in found:
                outcome = "failed" if found[name].outcome is Outcome.FAIL else "was skipped"
            return Finding(
                check=check.id, level=level, outcome=Outcome.SKIPPED, saw=f"it needs {name}, which {outcome}"
            )
    return None


def ask(
    check: Check,
    subject: Callable[[], Any],
    level: Level,
    complete: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
) -> Finding:
    """Runs one check.

    Args:
        check: The check.
        subject: Returns the argument of the check, or raises `CheckSkip`.
        level: Level of the check.
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
    took = time.perf_counter() - began
    return Finding(check=check.id, level=level, outcome=outcome, saw=str(saw), mend=fix, seconds=took)
