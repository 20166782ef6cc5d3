"""The checks of level semantic find planted faults of scores, and nothing in honest environments."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from openenv.project.checks import Finding, Level, Outcome
from openenv.project.checks.examination import SEMANTIC_CHECKS
from openenv.project.checks.findings import ask, skip_finding
from openenv.testing.check import Check
from openenv.testing.code_checks import CHECKS as CODE_CHECKS
from openenv.testing.harness import ConformanceHarness

from .planted import KINDS, PLANTED, SOUND
from .planted_code import PLANTED_CODE, Programs

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap"
)
FOUND = (Outcome.FAIL, Outcome.WARNING)
# A short limit of calls makes the checks short.
CALL_S = 3.0


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps thousands of refused actions, which the checks provoke, out of the log: pytest formats each record."""
    monkeypatch.setattr(logging.getLogger("openenv"), "disabled", True)
    monkeypatch.setattr(logging.getLogger("openenv.sessions"), "disabled", True)


def findings_of(app: Any, until_found: bool, checks: Sequence[Check] = SEMANTIC_CHECKS) -> list[Finding]:
    """The findings of semantic checks, up to the first one that says something if `until_found`."""
    harness = ConformanceHarness(app, call_s=CALL_S)
    needed = {"runtime.step", "runtime.seed"}
    found = {name: Finding(check=name, level=Level.RUNTIME, outcome=Outcome.PASS, saw="") for name in needed}
    with asyncio.Runner() as runner:
        for check in checks:
            found[check.id] = skip_finding(check, found) or ask(check, lambda: harness, runner.run)
            if until_found and found[check.id].outcome in FOUND:
                break
        runner.run(harness.server.aclose())
    return [finding for name, finding in found.items() if name not in needed]


@pytest.mark.slow
@pytest.mark.parametrize("app", PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found_with_what_to_do(app: Callable[[], Any]) -> None:
    last = findings_of(app(), until_found=True)[-1]
    assert last.outcome in FOUND, "no check found it"
    assert last.saw
    assert last.mend


@pytest.mark.slow
@pytest.mark.parametrize("app", SOUND.values(), ids=SOUND)
def test_nothing_is_found_in_an_honest_environment(app: Callable[[], Any]) -> None:
    said = [f"{each.check}: {each.saw}" for each in findings_of(app(), until_found=False) if each.outcome in FOUND]
    assert said == []


@needs_bwrap
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "check"), PLANTED_CODE.items())
def test_a_fault_of_an_environment_that_runs_code_is_found_by_its_check(fault: str, check: str) -> None:
    asked = [
        each for each in SEMANTIC_CHECKS if each in CODE_CHECKS or each.id in ("semantic.range", "semantic.oracle")
    ]
    last = findings_of(type("Programs", (Programs,), {"fault": fault}), until_found=True, checks=asked)[-1]
    assert (last.check, last.outcome) == (check, Outcome.FAIL), last.saw


@needs_bwrap
@pytest.mark.slow
def test_nothing_is_found_in_an_honest_environment_that_runs_code() -> None:
    found = findings_of(Programs, until_found=False)
    assert [f"{each.check}: {each.saw}" for each in found if each.outcome in FOUND] == []
    assert {each.check for each in found if each.outcome is Outcome.PASS} >= {each.id for each in CODE_CHECKS}


def test_there_are_forty_faults_of_ten_kinds_and_twenty_honest_environments() -> None:
    kinds = {name.split("-")[1] for name in PLANTED}
    assert (len(PLANTED), kinds, len(SOUND)) == (40, set(KINDS), 20)
