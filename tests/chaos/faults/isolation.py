"""Environments that break everything around them, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from ..driver import Driver, told
from ..served import Served, holds
from ..trial import Trial, fault

CULPRITS = 3
# What each misdeed may end in. Being refused memory or room for a file is the environment's own exception.
ENDS = {
    "segfault": {"EnvironmentCrashed"},
    "exit": {"EnvironmentCrashed"},
    "bomb": {"EnvironmentCrashed", "StepTimeout"},
    "allocate": {"EnvironmentCrashed", "StepFailed"},
    "write": {"EnvironmentCrashed", "StepFailed"},
    "print": {"EnvironmentCrashed", "StepTimeout"},
}
# Without isolation the rest would only fill this machine.
OF_THE_PEER = ("segfault", "exit")
TIMEOUT_S = 4.0
GONE_WITHIN_S = 2.0
PACE_S = 0.4
FLAT_MB = 40
SETTINGS = {
    "OPENENV_ISOLATION": "process",
    "OPENENV_PROCESS_MEMORY_MB": 384,
    "OPENENV_PROCESS_CHILDREN": 64,
    "OPENENV_PROCESS_OUTPUT_MB": 16,
}


@fault(
    "environment segfaults, exits, forks a bomb, allocates, writes a file, prints, without end (isolation: process)",
    "typed error, child group gone, server memory flat, no other session affected",
)
def misdeeds(trial: Trial) -> None:
    server = trial.serve("sync", sessions=400, settings=SETTINGS)
    crowd = trial.crowd(server.url, vector=100, timeout_s=TIMEOUT_S, steps=10, pace_s=PACE_S)
    culprits = set(range(200 - CULPRITS, 200))
    memory = server.resident_bytes()
    processes = len(server.marked())
    for what in ENDS if trial.ours else OF_THE_PEER:
        _commit(trial, server, crowd, what)
        if server.exit_code is not None:
            trial.check(False, "", f"{what}: the server has ended with {server.exit_code}")
            break
    report = crowd.report()
    for what, ends in ENDS.items() if trial.ours else ():
        errors = [error for error in report.errors if error["phase"] == what]
        first = {error["session"]: error["error"] for error in reversed(errors)}
        right = {session for session, name in first.items() if name in ends}
        trial.check(right == culprits, f"{what}: {_names(first)}", f"{what}: sessions got {_names(first)}")
    others = [error for error in report.errors if error["session"] not in culprits]
    trial.check(not others, "no other session failed", f"{len(others)} errors of others, as {others[:1]}")
    trial.counts(server, report)
    if server.exit_code is None:
        grown = (server.resident_bytes() - memory) / 2**20
        trial.check(grown <= FLAT_MB, f"memory {grown:+.0f} MB", f"memory {grown:+.0f} MB")
        left = len(server.marked())
        trial.check(
            left <= processes + 20, f"{left} processes of {processes}", f"{left} processes, before {processes}"
        )


def _commit(trial: Trial, server: Served, crowd: Driver, what: str) -> None:
    """Has the culprits do it, and waits until their processes and all below are gone."""
    crowd.say(f"phase {what}")
    groups = _groups(server)
    crowd.say(f"dare {CULPRITS} {what} 0")
    crowd.dared(CULPRITS, TIMEOUT_S + 1.0)
    # A session that was given up says so once more before it plays again.
    time.sleep(2 * PACE_S)
    gone = holds(lambda: len(_groups(server)) <= len(groups) + CULPRITS * 4, GONE_WITHIN_S)
    trial.check(
        gone is not None, f"{what}: group gone", f"{what}: {len(_groups(server))} processes, before {len(groups)}"
    )


def _groups(server: Served) -> list[int]:
    """Processes of sessions, and what they have started: all but the server's own."""
    own = {server.pid, *server.worker_pids()}
    return [pid for pid in server.marked() if pid not in own and Path(f"/proc/{pid}").exists() and pid != os.getpid()]


def _names(heard: dict[int, str]) -> str:
    return told(Counter(heard.values()))
