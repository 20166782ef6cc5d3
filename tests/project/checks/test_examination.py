"""The process in which an environment is examined: nothing it does reaches whoever started it, and nothing stays."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openenv.errors import LaunchFailed, NotAProject
from openenv.project.checks import Finding, Level, Outcome, examination
from openenv.project.checks.examination import examine, folder_of
from openenv.project.checks.findings import InternalFault

from ...corpus import GOOD

pytestmark = pytest.mark.real

SOON_S = 20.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return next(case for case in GOOD if case.name == "thread").write(tmp_path)


def change(project: Path, old: str, new: str, file: str = "server/maze_environment.py") -> None:
    path = project / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_what_an_environment_prints_is_not_printed(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change(project, "STEPS = 10\n", 'STEPS = 10\nprint("imported")\n')
    report = examine(str(project), Level.STATIC)
    assert report.passed
    assert capfd.readouterr() == ("", "")


def test_the_last_words_of_one_that_ends_are_told(project: Path) -> None:
    change(project, "STEPS = 10\n", 'print("no licence")\nraise SystemExit(4)\n')
    (failed,) = [each for each in examine(str(project), Level.STATIC).findings if each.outcome is Outcome.FAIL]
    assert failed.check == "static.import"
    change(project, "raise SystemExit(4)", "import os\nos.kill(os.getpid(), 11)")
    (failed,) = [each for each in examine(str(project), Level.STATIC).findings if each.outcome is Outcome.FAIL]
    assert "ended with SIGSEGV" in failed.saw


def test_after_a_crash_the_rest_is_asked_in_a_new_process(project: Path) -> None:
    change(
        project,
        "        if self._over:\n",
        "        if self._over:\n            import os\n\n            os._exit(5)\n",
    )
    began: list[str] = []
    report = examine(str(project), Level.RUNTIME, begun=began.append)
    outcomes = {each.check: each for each in report.findings}
    assert "exit code 5" in outcomes["runtime.after-done"].saw
    assert outcomes["runtime.after-done"].outcome is Outcome.FAIL
    assert outcomes["runtime.seed"].outcome is Outcome.PASS
    assert began.count("runtime.after-done") == 1
    assert outcomes["runtime.close"].outcome is Outcome.PASS


def test_of_what_an_environment_prints_only_the_end_is_kept(project: Path) -> None:
    written = 64 * 2**20
    change(
        project,
        "STEPS = 10\n",
        "STEPS = 10\nimport os\n"
        f"for _ in range({written} // 65536):\n    os.write(1, b'x' * 65535 + b'\\n')\n"
        "print('the end', flush=True)\nos._exit(3)\n",
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (failed,) = [each for each in examine(str(project), Level.STATIC).findings if each.outcome is Outcome.FAIL]
    assert "exit code 3" in failed.saw
    assert "(last line of its output: the end)" in failed.saw
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < written / 1024 / 4


@pytest.mark.slow
def test_one_that_closes_what_it_does_not_know_and_hangs_is_not_waited_for(project: Path) -> None:
    change(project, "STEPS = 10\n", "STEPS = 10\nimport os, time\nos.closerange(3, 256)\ntime.sleep(3000)\n")
    began = time.monotonic()
    (failed,) = [each for each in examine(str(project), Level.STATIC, 0.5).findings if each.outcome is Outcome.FAIL]
    assert "no message for" in failed.saw
    assert time.monotonic() - began < SOON_S


def test_no_check_is_blamed_for_a_process_that_does_not_start(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "START_S", 0.0)
    findings: list[Finding] = []
    with pytest.raises(LaunchFailed, match="did not start within 0 s: run this again"):
        examine(str(project), Level.STATIC, heard=findings.append)
    assert {each.check for each in findings} == {check.id for check in examination.FILE_CHECKS}


def test_how_long_python_takes_to_start_does_not_count_as_a_call(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a call is far below the time that a process needs for its first message."""
    change(project, "STEPS = 10\n", "STEPS = 10\nimport time\ntime.sleep(3000)\n")
    monkeypatch.setattr(examination, "PATIENCE_S", 0.0)
    began: list[str] = []
    report = examine(str(project), Level.STATIC, 1e-6, begun=began.append)
    (failed,) = [each for each in report.findings if each.outcome is Outcome.FAIL]
    assert failed.check == "static.import"
    assert "a call does not return" in failed.saw
    assert began == ["static.import"]


@pytest.mark.slow
def test_what_an_environment_that_hangs_has_started_is_ended_too(project: Path) -> None:
    started = project.parent / "started"
    change(
        project,
        "STEPS = 10\n",
        "STEPS = 10\nimport pathlib, subprocess, time\n"
        "other = subprocess.Popen(['sleep', '3000'], start_new_session=True)\n"
        f"pathlib.Path({str(started)!r}).write_text(str(other.pid))\n"
        "time.sleep(3000)\n",
    )
    assert not examine(str(project), Level.STATIC, 1.5).passed
    until(lambda: not alive(int(started.read_text(encoding="utf-8"))))


def test_a_module_that_is_not_there_is_no_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)
    for target in ("no_such_module:app", "maze.no_such_module:app", ":app"):
        with pytest.raises(NotAProject, match="no module"):
            examine(target, Level.STATIC)
    (failed,) = [each for each in examine("maze.server.app:gone", Level.STATIC).findings if each.outcome == "fail"]
    assert failed.check == "static.import"


def test_the_end_of_the_process_is_noticed_while_what_it_has_forked_goes_on(project: Path) -> None:
    forked = project.parent / "forked"
    change(
        project,
        "STEPS = 10\n",
        "import os, pathlib, time\n"
        "if (pid := os.fork()) == 0:\n"
        "    time.sleep(3000)\n"
        f"pathlib.Path({str(forked)!r}).write_text(str(pid))\n"
        "os._exit(6)\n"
        "STEPS = 10\n",
    )
    began = time.monotonic()
    (failed,) = [each for each in examine(str(project), Level.STATIC).findings if each.outcome is Outcome.FAIL]
    assert "exit code 6" in failed.saw
    assert time.monotonic() - began < SOON_S
    until(lambda: not alive(int(forked.read_text(encoding="utf-8"))))


def test_a_module_may_run_an_event_loop_when_it_is_imported(project: Path) -> None:
    change(project, "STEPS = 10\n", "import asyncio\n\nSTEPS = asyncio.run(asyncio.sleep(0, 10))\n")
    assert examine(str(project), Level.STATIC).passed


def test_an_attribute_of_a_module_is_a_target(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)
    report = examine("maze.server.maze_environment:MazeEnvironment", Level.RUNTIME)
    assert report.passed
    skipped = {each.check for each in report.findings if each.outcome is Outcome.SKIPPED}
    assert {"static.manifest", "static.readme", "static.client"} <= skipped
    assert not {"runtime.step", "runtime.seed"} & skipped


def test_an_app_that_is_not_ours_cannot_be_played_with(project: Path) -> None:
    change(
        project,
        "app = create_app(",
        "from fastapi import FastAPI\n\napp = FastAPI()\nother = create_app(",
        "server/app.py",
    )
    report = examine(str(project), Level.RUNTIME)
    assert report.passed
    played = [each for each in report.findings if each.check.startswith("runtime.")]
    assert {each.outcome for each in played} == {Outcome.SKIPPED}
    assert "--url" in next(each.saw for each in report.findings if each.check == "static.models")


def test_an_error_of_a_check_is_told_as_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = project.parent / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import openenv.testing.harness as harness\n"
        "def broken(*_): raise LookupError('our own mistake')\n"
        "harness.ConformanceHarness.sample = broken\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(hook), prepend=os.pathsep)
    with pytest.raises(InternalFault, match=r"runtime\.step has a bug.*our own mistake"):
        examine(str(project), Level.RUNTIME)


def test_what_stands_for_nothing_is_no_project(tmp_path: Path) -> None:
    for target in (str(tmp_path), str(tmp_path / "gone"), "no_such_environment"):
        with pytest.raises(NotAProject):
            folder_of(target)
    assert folder_of("module:attribute") is None
    assert folder_of("gymnasium:CartPole-v1") is None
    echo = folder_of("echo")
    assert echo is not None
    assert (echo / "openenv.yaml").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_an_examination_that_is_interrupted(project: Path, how: signal.Signals) -> None:
    pids = project.parent / "pids"
    change(
        project,
        "STEPS = 10\n",
        f"STEPS = 10\nimport os, pathlib, time\npathlib.Path({str(pids)!r}).write_text(str(os.getpid()))\n",
    )
    change(project, "        self._position = 0\n        self._goal", "        time.sleep(3000)\n        self._goal")
    command = [sys.executable, "-m", "openenv", "validate", str(project), "--level", "runtime", "--timeout", "100"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        until(pids.exists)
        child = int(until(lambda: pids.read_text(encoding="utf-8")))
        process.send_signal(how)
        _, complaints = process.communicate(timeout=SOON_S)
    assert process.returncode == (130 if how is signal.SIGINT else -9), complaints
    assert b"Traceback" not in complaints
    until(lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"


def until(condition):
    """Waits for processes, which tell nobody."""
    limit = time.monotonic() + SOON_S
    while True:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)
