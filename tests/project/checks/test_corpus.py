"""`openenv validate` finds what is wrong with each environment of the corpus, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from openenv.project import target
from openenv.project.checks import Finding, Level, Outcome, ValidationReport, examination
from openenv.project.checks.examination import examine

from ...corpus import BROKEN, GOOD, Case
from ...warm import WarmProcess, WarmPython

pytestmark = [pytest.mark.real, pytest.mark.slow]

# They wait for processes more than they compute.
AT_ONCE = 3
EPISODES = 40
Reports = Callable[[str], ValidationReport]


@pytest.fixture(scope="module", autouse=True)
def warm_processes() -> Iterator[None]:
    """Processes of environments are forks of one that has imported what all of them import.

    `test_examination.py` and the tests of `openenv validate` start real ones.
    """
    with WarmPython(examination.__name__, "openenv.server.app") as python, pytest.MonkeyPatch.context() as patch:

        def start(command: list[str], *, stdout: int, pass_fds: list[int], **_: Any) -> WarmProcess:
            numbers = {1: stdout, 2: stdout} | {each: each for each in pass_fds}
            return python.run(f"{examination.__name__}:answer_checks", command[-1], descriptors=numbers)

        class Subprocess:
            """The module, as the examination uses it."""

            DEVNULL = subprocess.DEVNULL
            TimeoutExpired = subprocess.TimeoutExpired
            Popen = staticmethod(start)

        patch.setattr(examination, "subprocess", Subprocess)
        yield


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    """The reports of all cases that tests of this run ask for, some of them at a time."""

    folder = tmp_path_factory.mktemp("corpus")  # the factory is not for several threads

    def examined(case: Case) -> ValidationReport:
        project = case.write(folder / case.name)
        return examine(str(project), Level(case.level), case.call_s, sessions=case.sessions, episodes=EPISODES)

    wanted = {
        item.callspec.params["case"]
        for item in request.session.items
        if getattr(item, "callspec", None) is not None and item.module is request.module
        if "case" in item.callspec.params
    }
    pool = ThreadPoolExecutor(AT_ONCE)
    futures: dict[str, Future[ValidationReport]] = {
        str(case.place): pool.submit(examined, case) for case in (*BROKEN, *GOOD) if str(case.place) in wanted
    }
    yield lambda place: futures[place].result()
    pool.shutdown(cancel_futures=True)


def found(report: ValidationReport) -> list[Finding]:
    return [each for each in report.findings if each.outcome in {Outcome.FAIL, Outcome.WARNING}]


def told(findings: list[Finding]) -> str:
    return "\n".join(f"{each.outcome} {each.check}: {each.saw}" for each in findings)


@pytest.mark.parametrize("case", [str(case.place) for case in BROKEN], ids=[case.name for case in BROKEN])
def test_the_fault_is_found_by_its_check_and_by_no_other(case: str, reports: Reports) -> None:
    expected = next(each for each in BROKEN if str(each.place) == case)
    findings = found(reports(case))
    must = {str(expected.check): expected.outcome}
    may = {*must, *expected.also}
    assert must.items() <= {each.check: str(each.outcome) for each in findings}.items(), told(findings)
    assert {each.check for each in findings} <= may, told(findings)
    for each in findings:
        assert each.saw
        assert each.mend


@pytest.mark.parametrize("case", [str(case.place) for case in GOOD], ids=[case.name for case in GOOD])
def test_nothing_is_found_in_a_good_one(case: str, reports: Reports) -> None:
    report = reports(case)
    assert found(report) == [], told(found(report))
    assert report.passed


@pytest.mark.parametrize("name", target.bundled())
def test_the_bundled_environments_are_good(name: str) -> None:
    report = examine(name, episodes=EPISODES, sessions=16)
    assert found(report) == [], told(found(report))


def test_the_corpus_has_twenty_broken_environments_of_different_checks_and_ten_good_ones() -> None:
    assert len(BROKEN) >= 20
    assert len({case.check for case in BROKEN}) >= 20
    assert {str(case.check).partition(".")[0] for case in BROKEN} == {"static", "runtime", "load"}
    assert len(GOOD) >= 10
