"""Servers that are told to stop, or to replace their workers, while they are used."""

from __future__ import annotations

import signal
import subprocess
import time

from ..served import holds
from ..trial import Trial, fault

GRACE_S = 8
# The workers are replaced one after the other.
ROLLING_S = 40.0


@fault("SIGTERM under load", "no call lost: every episode is played to its end, and the server ends by itself")
def sigterm(trial: Trial) -> None:
    server = trial.serve(
        "async",
        workers=4 if trial.ours else 2,
        sessions=800,
        settings={"OPENENV_GRACE_S": GRACE_S},
        options=trial.peer_options("--timeout-graceful-shutdown", str(GRACE_S)),
    )
    crowd = trial.crowd(server.url, pace_s=0.1)
    time.sleep(1)
    server.tell(signal.SIGTERM)
    time.sleep(0.5)
    report = crowd.report()
    began = time.monotonic()
    trial.no_errors(report)
    trial.counts(server, report)
    try:
        code = server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        trial.check(False, "", "the server has not ended by itself")
    else:
        trial.check(code == 0 or not trial.ours, f"ended with {code} after {time.monotonic() - began:.1f} s")
    left = server.marked()
    trial.check(not left, "no process left", f"{len(left)} processes left")


@fault(
    "rolling replacement (SIGHUP) under load",
    "no call lost, no client refused, all workers are new ones",
    peer="its server cannot replace workers that are in use",
)
def rolling(trial: Trial) -> None:
    server = trial.serve("async", workers=4, sessions=1200, settings={"OPENENV_GRACE_S": GRACE_S})
    old = set(server.children())
    # Clients that come and go, and clients that stay: these move between two episodes.
    churning = trial.crowd(server.url, vector=0, sessions=100, pace_s=0.1, churn=1.0)
    staying = trial.crowd(server.url, sessions=100, pace_s=0.1, first=1000)
    server.tell(signal.SIGHUP)
    replaced = holds(lambda: not old & set(server.pids()), ROLLING_S)
    trial.in_time(
        replaced is not None,
        f"all workers are new after {replaced or 0:.1f} s",
        f"{len(old & set(server.pids()))} old workers left after {ROLLING_S:g} s",
    )
    for who, crowd in (("who come and go", churning), ("who stay", staying)):
        report = crowd.report()
        trial.note(f"clients {who}")
        trial.no_errors(report)
        trial.check(not report.mixed, "no reply to another", f"{report.mixed[:3]}")
    trial.check(server.exit_code is None and len(server.children()) == 4, "4 workers")
