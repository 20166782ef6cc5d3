"""Check one environment level by level. Its code runs in a child process, which executes this module.

That code may hang, print or end its process. Only the child is affected, and the parent knows which checks it has
completed. The child reports by lines of JSON on a pipe: `{"begin": id}`, `{"finding": {...}}`, `{"beat": true}` while
the event loop runs, `{"load": true}` before it imports the environment for checks after the first ones, and
`{"internal": [id, reason]}` for an error of a check itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..._processes import KILL, can_fork, signal_group
from ...errors import LaunchFailed, NotAProject, UsageError
from ...runtime.process.fork_server import PipeTail
from ...testing import cheat_checks, code_checks, score_checks
from ...testing.check import Check
from ...testing.environments import CHECKS as PLAYING_CHECKS
from ...testing.leak_checks import descendants
from .. import target as targets
from ..manifest import FILE_NAME, Project
from .chat import runtime_chat
from .findings import Finding, InternalFault, Level, Outcome, ValidationReport, ask, level_of, run, skip_finding
from .static import FILE_CHECKS, IMPORT_CHECKS, EnvironmentUnderTest

# Maximum of characters that are quoted from the last line of the process's output.
LONGEST_QUOTE = 400

SEMANTIC_CHECKS = (*score_checks.CHECKS, *cheat_checks.CHECKS, *code_checks.CHECKS)
_ORDER = (Level.STATIC, Level.RUNTIME, Level.LOAD, Level.SEMANTIC)
CODE_CHECKS: tuple[Check, ...] = (
    *IMPORT_CHECKS,
    *(
        check if check.needs else replace(check, needs=("static.import",))
        for check in sorted(
            [*PLAYING_CHECKS, runtime_chat, *SEMANTIC_CHECKS], key=lambda check: _ORDER.index(level_of(check))
        )
    ),
)
"""The process that runs the environment's code."""


def checks_up_to(level: Level) -> list[Check]:
    """The checks of a level and of those before it that run code; at level semantic, of these only what it needs."""
    checks = [check for check in CODE_CHECKS if _ORDER.index(level_of(check)) <= _ORDER.index(level)]
    if level is Level.SEMANTIC:
        needed = {check.id for check in SEMANTIC_CHECKS}
        for check in reversed(checks):
            needed |= set(check.needs) if check.id in needed else set()
        checks = [check for check in checks if check.id in needed or level_of(check) is Level.STATIC]
    return checks


SESSIONS = 64
EPISODES = 1000
CALL_S = 10.0
# Seconds for imports: some libraries are slow to import.
IMPORT_CALLS = 4
# Seconds added to the limit of one call, during which the process may send nothing.
PATIENCE_S = 3.0
# Seconds until the first message of the process: Python starts and imports this package, on a busy machine too.
START_S = 60.0
GLANCE_S = 0.25


def folder_of(target: str) -> Path | None:
    """The folder of a target that is a project. None for `module:attribute` and `gymnasium:ENV_ID`.

    Raises:
        NotAProject: The target does not exist.
    """
    if target in targets.bundled():
        return targets.bundled()[target]
    place = Path(target)
    if ":" in target and not place.exists():
        return None
    folder = place.parent if place.name == FILE_NAME else place
    if not folder.is_dir() or not (folder / FILE_NAME).is_file():
        return Project.find(place).folder  # raises
    return folder.resolve()


def examine(
    target: str,
    level: Level = Level.LOAD,
    call_s: float = CALL_S,
    *,
    sessions: int = SESSIONS,
    episodes: int = EPISODES,
    begun: Callable[[str], None] = lambda _: None,
    heard: Callable[[Finding], None] = lambda _: None,
) -> ValidationReport:
    """Checks an environment.

    Args:
        target: Argument of `openenv serve`.
        level: Last level of checks to run; each level includes those before it.
        call_s: Maximum of seconds for one call of the environment.
        sessions: Number of concurrent sessions, at level load.
        episodes: Number of episodes that are played to measure the growth of memory, at level load.
        begun: Called with the id of each check when it begins.
        heard: Called with each finding as soon as it exists.

    Raises:
        NotAProject: There is nothing to check.
        InternalFault: A check has a bug.
        LaunchFailed: The process of the environment did not start.
    """
    folder = folder_of(target)
    bundled = target in targets.bundled()
    module = target.partition(":")[0]
    if folder is None and module not in {"gymnasium", "pettingzoo"} and not targets.is_there(module):
        raise NotAProject(
            f"no module {module!r} for {target!r} in {Path.cwd()} or among the installed packages: correct the name, "
            "or change to the folder from which it can be imported"
        )
    found: list[Finding] = []
    if folder is not None:
        found += run(FILE_CHECKS, folder, heard)
        if found[0].outcome is Outcome.FAIL:
            found += _skipped(checks_up_to(level), f"it needs {found[0].check}, which failed", heard)
            return ValidationReport(target=target, findings=found)
    else:
        found += _skipped(FILE_CHECKS, f"{target} is not a folder with {FILE_NAME}", heard)
    served_target = target if bundled or folder is None else str(folder)
    examination = Examination(EnvironmentUnderTest(served_target, folder, call_s, sessions, episodes), begun, heard)
    return ValidationReport(target=target, findings=found + examination.run(checks_up_to(level)))


def _skipped(checks: Any, why: str, heard: Callable[[Finding], None]) -> list[Finding]:
    findings = [Finding.of(check, Outcome.SKIPPED, why) for check in checks]
    for finding in findings:
        heard(finding)
    return findings


@dataclass
class Examination:
    """Runs checks that execute the environment's code in a child process. If that ends or hangs, starts a new one.

    Attributes:
        subject: The environment to check.
        begun, heard: Callbacks, as for `examine`.
    """

    subject: EnvironmentUnderTest
    begun: Callable[[str], None]
    heard: Callable[[Finding], None]
    _found: dict[str, Finding] = field(default_factory=dict)
    _started: bool = False
    _current: str | None = None

    def run(self, checks: list[Check]) -> list[Finding]:
        """The findings, in the order of the checks. Raises InternalFault and LaunchFailed."""
        while True:
            for check in checks:
                needs_known = check.needs and self._found.keys() >= set(check.needs)
                if needs_known and check.id not in self._found and (skipped := skip_finding(check, self._found)):
                    self._note(skipped)
            remaining = [check for check in checks if check.id not in self._found]
            if not remaining:
                return [self._found[check.id] for check in checks]
            self._started, self._current = False, None
            why = self._ask(remaining)
            if why is not None:
                failed = next(check for check in remaining if check.id not in self._found)
                self._note(Finding.of(failed, Outcome.FAIL, *why))

    def _ask(self, checks: list[Check]) -> tuple[str, str] | None:
        """Runs checks in one process until it ends or hangs. Returns why some did not run, and a fix."""
        with self._process(checks) as (process, report, output):
            reason = self._listen(process, report, output)
            if all(check.id in self._found for check in checks):
                return None
            output.read()
            last = output.text.decode(errors="replace").strip().rpartition("\n")[2][-LONGEST_QUOTE:]
            quoted = f" (last line of its output: {last})" if last else ""
            if reason is not None:
                return f"{reason}{quoted}.", _FIX_HANGS
            code = process.returncode
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return f"the process of the environment ended with {how} during this check{quoted}.", _FIX_ENDS

    @contextlib.contextmanager
    def _process(self, checks: list[Check]) -> Iterator[tuple[subprocess.Popen[bytes], int, PipeTail]]:
        if not can_fork():
            raise UsageError("the checks run in processes that inherit pipes, as on POSIX: use WSL or a container")
        report, theirs = os.pipe()
        reading, writing = os.pipe()
        output, subject = PipeTail(reading), self.subject
        order = {
            "report": theirs,
            "subject": [subject.target, subject.folder, subject.call_s, subject.sessions, subject.episodes],
            "found": [finding.model_dump(mode="json") for finding in self._found.values()],
            "checks": [check.id for check in checks],
        }
        command = [sys.executable, "-B", "-m", "openenv.project.checks.examination", json.dumps(order, default=str)]
        try:
            try:
                process = subprocess.Popen(  # noqa: S603 - itself
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=writing,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
            finally:
                os.close(theirs)
                os.close(writing)
            try:
                yield process, report, output
            finally:  # also after Ctrl-C; its children may have their own process groups
                started = [int(each) for each in descendants(str(process.pid))]
                with contextlib.suppress(ProcessLookupError):
                    signal_group(process.pid, KILL)
                for each in started:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, KILL)
                process.wait()
        finally:
            os.close(report)
            output.close()

    def _listen(self, process: subprocess.Popen[bytes], report: int, output: PipeTail) -> str | None:
        """Reads the messages of the process until its end. Returns a reason if it stopped sending them.

        Raises:
            LaunchFailed: There was no first message.
        """
        unread = b""
        limit = time.monotonic() + self._silence_s()
        with selectors.DefaultSelector() as selector:
            selector.register(report, selectors.EVENT_READ)
            selector.register(output.descriptor, selectors.EVENT_READ)
            while time.monotonic() < limit:
                ended = process.poll() is not None  # checked first: after its end, all its output is readable
                ready = {key.fd for key, _ in selector.select(0 if ended else GLANCE_S)}
                if output.descriptor in ready and not output.read():
                    selector.unregister(output.descriptor)
                if report in ready:
                    read = os.read(report, 65536)
                    *lines, unread = (unread + read).split(b"\n")
                    for line in lines:
                        self._receive(json.loads(line))
                    if lines:
                        limit = time.monotonic() + self._silence_s()
                    if not read:  # the process may run on: its code may have closed this pipe
                        selector.unregister(report)
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            process.wait(GLANCE_S)
                elif ended:  # its forked children may hold the other ends of the pipes
                    return None
        if not self._started:
            raise LaunchFailed(
                f"the process that imports {self.subject.target} did not start within {START_S:g} s: "
                "run this again when the machine has less to do"
            )
        said = f"no message for {self._silence_s():g} s"
        return f"{said}: a call does not return (--timeout is {self.subject.call_s:g})"

    def _silence_s(self) -> float:
        if not self._started:
            return START_S
        importing = self._current is None or self._current == "static.import"
        return self.subject.call_s * (IMPORT_CALLS if importing else 1) + PATIENCE_S

    def _receive(self, line: dict[str, Any]) -> None:
        self._started = True
        if "begin" in line:
            self._current = line["begin"]
            self.begun(line["begin"])
        elif "finding" in line:
            self._note(Finding.model_validate(line["finding"]))
        elif "internal" in line:
            raise InternalFault(*line["internal"])

    def _note(self, finding: Finding) -> None:
        self._found[finding.check] = finding
        self.heard(finding)


_FIX_HANGS = "make every call return or time out, and use await for calls that block on the event loop"
_FIX_ENDS = (
    "the environment must not end its process (os._exit, a crash of an extension module), or must declare "
    "execution = 'process'"
)


BEAT_S = 0.25


def answer_checks() -> None:
    """The main function of the child process: runs the checks that its argument names."""
    order = json.loads(sys.argv[1])
    # The last line of the output must be the environment's, not the server's log of errors that checks provoke.
    logger = logging.getLogger("openenv")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    os.set_inheritable(order["report"], False)  # child processes of the environment must not inherit it

    def say(**line: Any) -> None:
        try:
            os.write(order["report"], json.dumps(line).encode() + b"\n")
        except OSError:  # the parent has ended
            os._exit(1)

    async def beat() -> None:
        while True:
            say(beat=True)
            await asyncio.sleep(BEAT_S)

    target, folder, *bounds = order["subject"]
    subject = EnvironmentUnderTest(target, folder and Path(folder), *bounds)
    if order["found"]:
        say(load=True)
        subject.load()
    found = {each["check"]: Finding.model_validate(each) for each in order["found"]}
    runner = asyncio.Runner()
    beating = None
    for check in (each for each in CODE_CHECKS if each.id in order["checks"]):
        # Imports run first, outside an event loop: modules may run one themselves. The other checks share a loop.
        plays = check not in IMPORT_CHECKS
        if plays and beating is None:
            beating = runner.get_loop().create_task(beat())
        say(begin=check.id)
        try:
            finding = skip_finding(check, found) or ask(
                check, (lambda: subject.harness) if plays else (lambda: subject), runner.run
            )
        except InternalFault as fault:
            traceback.print_exc()
            say(internal=[fault.check, fault.reason])
            os._exit(1)
        found[check.id] = finding
        say(finding=finding.model_dump(mode="json"))
    os._exit(0)  # threads of the environment must not delay the exit


if __name__ == "__main__":
    answer_checks()
