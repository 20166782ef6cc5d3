"""From what a probe does to a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openenv.errors import NotAProject, StepFailed
from openenv.project.checks import Finding, Level, Outcome
from openenv.project.checks.run import InternalFault, run
from openenv.testing.probe import CannotTell, Doubt, Fault, Probe


def raising(error: Exception) -> Callable[[Any], str]:
    def look(_: Any) -> str:
        raise error

    return look


def asked(*probes: Probe) -> list[Finding]:
    heard: list[Finding] = []
    found = run(probes, "it", Level.RUNTIME, heard.append)
    assert heard == found
    return found


async def awaited(subject: str) -> str:
    return f"{subject} is well"


@pytest.mark.parametrize(
    ("look", "outcome", "saw", "mend"),
    [
        (lambda subject: f"{subject} is well", Outcome.PASS, "it is well", None),
        (awaited, Outcome.PASS, "it is well", None),
        (raising(Fault("a hole.", "mend it")), Outcome.FAIL, "a hole.", "mend it"),
        (raising(Doubt("a spot.", "wash it")), Outcome.WARNING, "a spot.", "wash it"),
        (raising(CannotTell("it is dark")), Outcome.SKIPPED, "it is dark", None),
        (raising(StepFailed("it broke")), Outcome.FAIL, "StepFailed: it broke.", "see the message"),
    ],
)
def test_a_finding_says_what_a_probe_did(look: Any, outcome: Outcome, saw: str, mend: str | None) -> None:
    (finding,) = asked(Probe("runtime.it", "Is it well?", look))
    assert (finding.check, finding.level) == ("runtime.it", Level.RUNTIME)
    assert (finding.outcome, finding.saw, finding.mend) == (outcome, saw, mend)
    assert finding.seconds >= 0


def test_a_probe_is_skipped_without_what_it_needs() -> None:
    found = asked(
        Probe("runtime.a", "?", raising(Doubt("a spot.", "wash it"))),
        Probe("runtime.b", "?", raising(Fault("a hole.", "mend it")), ("runtime.a",)),
        Probe("runtime.c", "?", str, ("runtime.b",)),
        Probe("runtime.d", "?", str, ("runtime.c",)),
        Probe("runtime.e", "?", str, ("runtime.z",)),
    )
    assert [each.outcome for each in found] == ["warning", "fail", "skipped", "skipped", "skipped"]
    assert [each.saw for each in found[2:]] == [
        "it needs runtime.b, which failed",
        "it needs runtime.c, which was skipped",
        "it needs runtime.z, which was not asked",
    ]


def test_any_other_exception_is_an_error_of_the_check_itself() -> None:
    with pytest.raises(InternalFault, match=r"runtime\.it failed by itself.*KeyError: 'lost'") as raised:
        asked(Probe("runtime.it", "?", raising(KeyError("lost"))))
    assert raised.value.check == "runtime.it"


def test_that_there_is_no_project_is_no_finding() -> None:
    with pytest.raises(NotAProject):
        asked(Probe("static.it", "?", raising(NotAProject("nothing here"))))
