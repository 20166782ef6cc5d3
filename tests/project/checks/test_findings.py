"""From what a check does to a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openenv.errors import NotAProject, StepFailed
from openenv.project.checks import Finding, Level, Outcome
from openenv.project.checks.findings import InternalFault, run
from openenv.testing.check import Check, CheckFailure, CheckSkip, CheckWarning


def raising(error: Exception) -> Callable[[Any], str]:
    def look(_: Any) -> str:
        raise error

    return look


def asked(*checks: Check) -> list[Finding]:
    heard: list[Finding] = []
    found = run(checks, "it", heard.append)
    assert heard == found
    return found


async def awaited(subject: str) -> str:
    return f"{subject} is well"


@pytest.mark.parametrize(
    ("look", "outcome", "saw", "mend"),
    [
        (lambda subject: f"{subject} is well", Outcome.PASS, "it is well", None),
        (awaited, Outcome.PASS, "it is well", None),
        (raising(CheckFailure("a hole.", "mend it")), Outcome.FAIL, "a hole.", "mend it"),
        (raising(CheckWarning("a spot.", "wash it")), Outcome.WARNING, "a spot.", "wash it"),
        (raising(CheckSkip("it is dark")), Outcome.SKIPPED, "it is dark", None),
        (raising(StepFailed("it broke")), Outcome.FAIL, "StepFailed: it broke.", "see the message"),
    ],
)
def test_a_finding_says_what_a_check_did(look: Any, outcome: Outcome, saw: str, mend: str | None) -> None:
    (finding,) = asked(Check("runtime.it", "Is it well?", look))
    assert (finding.check, finding.level) == ("runtime.it", Level.RUNTIME)
    assert (finding.outcome, finding.saw, finding.mend) == (outcome, saw, mend)
    assert finding.seconds >= 0


def test_a_check_is_skipped_without_what_it_needs() -> None:
    found = asked(
        Check("runtime.a", "?", raising(CheckWarning("a spot.", "wash it"))),
        Check("runtime.b", "?", raising(CheckFailure("a hole.", "mend it")), ("runtime.a",)),
        Check("runtime.c", "?", str, ("runtime.b",)),
        Check("runtime.d", "?", str, ("runtime.c",)),
        Check("runtime.e", "?", str, ("runtime.z",)),
    )
    assert [each.outcome for each in found] == ["warning", "fail", "skipped", "skipped", "skipped"]
    assert [each.saw for each in found[2:]] == [
        "it needs runtime.b, which failed",
        "it needs runtime.c, which was skipped",
        "it needs runtime.z, which did not run",
    ]


def test_any_other_exception_is_an_error_of_the_check_itself() -> None:
    with pytest.raises(InternalFault, match=r"runtime\.it has a bug.*KeyError: 'lost'") as raised:
        asked(Check("runtime.it", "?", raising(KeyError("lost"))))
    assert raised.value.check == "runtime.it"


def test_that_there_is_no_project_is_no_finding() -> None:
    with pytest.raises(NotAProject):
        asked(Check("static.it", "?", raising(NotAProject("nothing here"))))
