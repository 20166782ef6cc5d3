"""From probes to findings: asks them in turn, and writes down what each saw."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...errors import NotAProject, OpenEnvError
from ...testing.probe import CannotTell, Doubt, Fault, Probe
from .finding import Finding, Level, Outcome

__all__ = ["InternalFault", "Verdict", "needed", "run", "verdict"]

_FINE = (Outcome.PASS, Outcome.WARNING)


class InternalFault(Exception):
    """A check failed by itself: an error of this package, and not of what was checked.

    Args:
        check: The id of the check.
        reason: What it raised.
    """

    def __init__(self, check: str, reason: str):
        super().__init__(f"the check {check} failed by itself, which is an error of openenv: {reason}")
        self.check = check
        self.reason = reason


def run(
    probes: Iterable[Probe], subject: Any, level: Level, heard: Callable[[Finding], None] | None = None
) -> list[Finding]:
    """Puts probes to a subject, one after the other.

    Args:
        probes: In their order; those whose `needs` have failed are skipped.
        subject: Given to each.
        level: Of all of them.
        heard: Gets each finding when it is there.

    Raises:
        InternalFault: A probe raised what no probe may raise.
    """
    found: dict[str, Finding] = {}
    for probe in probes:
        finding = needed(probe, found, level) or _asked(probe, subject, level)
        found[probe.id] = finding
        if heard is not None:
            heard(finding)
    return list(found.values())


def needed(probe: Probe, found: dict[str, Finding], level: Level, known: bool = False) -> Finding | None:
    """The finding of a probe that cannot be put, since one before it has not passed; None if it can.

    Args:
        probe: Which.
        found: What was found before.
        level: Of the probe.
        known: Only what was found counts, and not what is still to be asked.
    """
    for name in probe.needs:
        if known and name not in found:
            continue
        if name not in found or found[name].outcome not in _FINE:
            outcome = "was not asked"
            if name in found:
                outcome = "failed" if found[name].outcome is Outcome.FAIL else "was skipped"
            return Finding(
                check=probe.id, level=level, outcome=Outcome.SKIPPED, saw=f"it needs {name}, which {outcome}"
            )
    return None


class Verdict(NamedTuple):
    """What came of one probe."""

    outcome: Outcome
    saw: str
    mend: str | None = None

    def finding(self, probe: Probe, level: Level, began: float) -> Finding:
        """The same as a finding, of a probe that began at a time of `perf_counter`."""
        took = time.perf_counter() - began
        return Finding(check=probe.id, level=level, outcome=self.outcome, saw=self.saw, mend=self.mend, seconds=took)


def verdict(probe: Probe, error: Exception) -> Verdict:
    """What it means that a probe raised something.

    Raises:
        InternalFault: It raised what no probe may raise.
    """
    if isinstance(error, Fault):
        return Verdict(Outcome.FAIL, error.saw, error.mend)
    if isinstance(error, Doubt):
        return Verdict(Outcome.WARNING, error.saw, error.mend)
    if isinstance(error, CannotTell):
        return Verdict(Outcome.SKIPPED, str(error))
    if isinstance(error, NotAProject):
        raise error
    if isinstance(error, OpenEnvError):  # what no probe expected, and what it looks at is the cause of
        return Verdict(Outcome.FAIL, f"{type(error).__name__}: {error.message}.", "see the message")
    raise InternalFault(probe.id, f"{type(error).__name__}: {error}") from error


def _asked(probe: Probe, subject: Any, level: Level) -> Finding:
    began = time.perf_counter()
    try:
        saw = probe.look(subject)
        if inspect.iscoroutine(saw):
            saw = asyncio.run(saw)
        told = Verdict(Outcome.PASS, str(saw))
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: probes call it, and answer for what it raises
        told = verdict(probe, error)
    return told.finding(probe, level, began)
