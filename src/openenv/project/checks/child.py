"""The process that runs the code of an environment under examination: `python -m openenv.project.checks.child`.

Whatever that code does (hang, print, end the process) reaches nobody but this process, and the one that started it
sees how far it came. It is told by lines of JSON on a pipe: `{"begin": id}`, `{"finding": {...}}`, `{"beat": true}`
while the event loop runs, and `{"internal": [id, reason]}` for an error of a check itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ...testing.check import Check
from .examination import check_of, level_of
from .findings import CheckResult, Finding, InternalFault, Outcome, result_of_error, skip_finding
from .imports import CHECKS as IMPORTS
from .imports import EnvironmentUnderTest

BEAT_S = 0.25


class PipeReporter:
    """The pipe to whoever started this process.

    Args:
        number: Its file descriptor.
    """

    def __init__(self, number: int):
        self._number = number

    def say(self, **line: Any) -> None:
        """Writes a line; if nobody reads it any more, this process has no purpose."""
        try:
            os.write(self._number, json.dumps(line).encode() + b"\n")
        except OSError:
            os._exit(1)

    async def beat(self) -> None:
        """Says again and again that the event loop runs."""
        while True:
            self.say(beat=True)
            await asyncio.sleep(BEAT_S)


def main() -> None:
    """Answers the checks that the argument names."""
    order = json.loads(sys.argv[1])
    _silence_logs()
    reporter = PipeReporter(order["report"])
    os.set_inheritable(order["report"], False)  # what the environment starts is no part of this
    folder = order["folder"]
    served = EnvironmentUnderTest(
        order["target"],
        None if folder is None else Path(folder),
        order["call_s"],
        order["sessions"],
        order["episodes"],
    )
    if order["again"]:
        served.load()
    asking = CheckRunner(served, reporter, {each["check"]: Finding.model_validate(each) for each in order["found"]})
    checks = [check_of(name) for name in order["checks"]]
    for check in checks:
        if check in IMPORTS:  # outside of any event loop: modules may run one of their own
            asking.look(check)
    asyncio.run(asking.play([check for check in checks if check not in IMPORTS]))


def _silence_logs() -> None:
    """What the server says of errors that checks provoke is not what the environment had to say at last."""
    check_of = logging.getLogger("openenv")
    check_of.addHandler(logging.NullHandler())
    check_of.propagate = False


class CheckRunner:
    """Puts the questions.

    Args:
        served: To whom.
        reporter: Hears the answers.
        found: Answers of before.
    """

    def __init__(self, served: EnvironmentUnderTest, reporter: PipeReporter, found: dict[str, Finding]):
        self._served = served
        self._reporter = reporter
        self._found = found

    def look(self, check: Check) -> None:
        """Puts a question whose answer needs no event loop."""
        if self._begins(check):
            began = time.perf_counter()
            try:
                told = CheckResult(Outcome.PASS, str(check.run(self._served)))
            except Exception as error:  # noqa: BLE001 - it is told as what it is
                told = self._verdict(check, error)
            self._note(told.finding(check, level_of(check), began))

    async def play(self, checks: list[Check]) -> None:
        """Puts those that play, on one event loop."""
        beating = asyncio.create_task(self._reporter.beat())
        for check in checks:
            if self._begins(check):
                began = time.perf_counter()
                try:
                    told = CheckResult(Outcome.PASS, str(await check.run(self._served.harness)))
                except Exception as error:  # noqa: BLE001 - it is told as what it is
                    told = self._verdict(check, error)
                self._note(told.finding(check, level_of(check), began))
        beating.cancel()
        os._exit(0)  # threads of the environment must not keep it

    def _begins(self, check: Check) -> bool:
        self._reporter.say(begin=check.id)
        skipped = skip_finding(check, self._found, level_of(check))
        if skipped is not None:
            self._note(skipped)
        return skipped is None

    def _verdict(self, check: Check, error: Exception) -> CheckResult:
        try:
            return result_of_error(check, error)
        except InternalFault as fault:
            traceback.print_exc()
            self._reporter.say(internal=[fault.check, fault.reason])
            os._exit(1)

    def _note(self, finding: Finding) -> None:
        self._found[finding.check] = finding
        self._reporter.say(finding=finding.model_dump(mode="json"))


if __name__ == "__main__":
    main()
