"""The process that runs the code of an environment under examination: `python -m openenv.project.checks.child`.

That code may hang, print or end the process: only this process is affected, and the one that started it sees how far
it came. This process reports by lines of JSON on a pipe: `{"begin": id}`, `{"finding": {...}}`, `{"beat": true}`
while the event loop runs, and `{"internal": [id, reason]}` for an error of a check itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from .examination import check_of, level_of
from .findings import Finding, InternalFault, ask, skip_finding
from .imports import CHECKS as IMPORTS
from .imports import EnvironmentUnderTest

BEAT_S = 0.25


class PipeReporter:
    """The pipe to the process that started this one.

    Args:
        number: Its file descriptor.
    """

    def __init__(self, number: int):
        self._number = number

    def say(self, **line: Any) -> None:
        """Writes a line; ends this process if no process reads it any more."""
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
    """Runs the checks that the argument names."""
    order = json.loads(sys.argv[1])
    # The last words of the environment are its own, and not the server's log of errors that checks provoke.
    logger = logging.getLogger("openenv")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    reporter = PipeReporter(order["report"])
    os.set_inheritable(order["report"], False)  # what the environment starts is no part of this
    folder = None if order["folder"] is None else Path(order["folder"])
    subject = EnvironmentUnderTest(order["target"], folder, order["call_s"], order["sessions"], order["episodes"])
    if order["again"]:
        subject.load()
    found = {each["check"]: Finding.model_validate(each) for each in order["found"]}
    runner = asyncio.Runner()
    beating = None
    for check in map(check_of, order["checks"]):
        # Imports come first, outside of any event loop: modules may run one of their own. The others share one.
        plays = check not in IMPORTS
        if plays and beating is None:
            beating = runner.get_loop().create_task(reporter.beat())
        reporter.say(begin=check.id)
        level = level_of(check)
        try:
            finding = skip_finding(check, found, level) or ask(
                check, (lambda: subject.harness) if plays else (lambda: subject), level, runner.run
            )
        except InternalFault as fault:
            traceback.print_exc()
            reporter.say(internal=[fault.check, fault.reason])
            os._exit(1)
        found[check.id] = finding
        reporter.say(finding=finding.model_dump(mode="json"))
    os._exit(0)  # threads of the environment must not keep it


if __name__ == "__main__":
    main()
