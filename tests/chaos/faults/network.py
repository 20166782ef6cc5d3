"""What networks do: connections that end anywhere, replies that come late, peers that fall silent."""

from __future__ import annotations

import signal
import time

from ..driver import told
from ..served import holds
from ..trial import Trial, fault

CUTS = 10
# From one cut to the next: connections are back, and steps were taken.
BETWEEN_CUTS_S = 0.3
TIMEOUT_S = 0.5
HEARTBEAT_S = 1.0
WINDOW_S = 2.0
SLACK_S = 1.0


@fault(
    "every connection cut at a random byte, 10 times",
    "all episodes complete; each environment's count of steps is its client's, exactly",
)
def cut(trial: Trial) -> None:
    server = trial.serve("async", workers=2, sessions=400)
    proxy = trial.proxy(server)
    crowd = trial.crowd(proxy.url, pace_s=0.1, steps=20)
    cut = 0
    for _ in range(CUTS):
        cut += proxy.cut_all()
        # Everybody is back, or nobody comes back any more.
        holds(lambda: proxy.connections >= 100, 3.0)
        time.sleep(BETWEEN_CUTS_S)
    report = crowd.report()
    trial.note(f"{cut} connections cut")
    trial.no_errors(report)
    trial.counts(server, report)
    trial.check(report.completed >= 200, "every session has played", f"{report.completed} episodes of 200 sessions")


@fault(
    "replies delayed beyond the client's timeout",
    "no reply reaches another request; the episode goes on",
)
def delayed(trial: Trial) -> None:
    server = trial.serve("async", sessions=400)
    proxy = trial.proxy(server)
    crowd = trial.crowd(proxy.url, pace_s=0.1, steps=20, timeout_s=TIMEOUT_S)
    crowd.say("phase delayed")
    proxy.delay(3 * TIMEOUT_S, 0.03)
    time.sleep(4)
    proxy.delay(0)
    crowd.say("phase after")
    time.sleep(3 * TIMEOUT_S + 0.5)
    report = crowd.report()
    late = [error for error in report.errors if error["error"] in {"StepTimeout", "TimeoutError"}]
    trial.check(bool(late), f"{len(late)} calls timed out", "no call has timed out: nothing was shown")
    # A reset that timed out leaves no episode, and a vector's next step says so.
    expected = {"StepTimeout", "TimeoutError", "ResetRequired"}
    others = {name: count for name, count in report.names().items() if name not in expected}
    trial.check(not others, "no other error", f"other errors: {told(others)}")
    trial.counts(server, report)
    trial.check(report.completed >= 200, f"{report.completed} episodes complete", f"only {report.completed} episodes")
    trial.check(report.p99_ms("after") > 0, "steps go on after it")


@fault(
    "clients frozen (SIGSTOP), or half-open",
    "slots back within 2 heartbeat periods and the resume window (here 1 s and 2 s)",
)
def frozen(trial: Trial) -> None:
    server = trial.serve(
        "async",
        sessions=200,
        settings={
            "OPENENV_PING_INTERVAL_S": HEARTBEAT_S,
            "OPENENV_HEARTBEAT_S": HEARTBEAT_S,
            "OPENENV_RESUME_WINDOW_S": WINDOW_S,
            "OPENENV_QUEUE_TIMEOUT_S": 30,
        },
        options=trial.peer_options("--ws-ping-interval", "1", "--ws-ping-timeout", "1"),
    )
    proxy = trial.proxy(server)
    stopped = trial.crowd(server.url, sessions=100, timeout_s=2.0)
    half_open = trial.crowd(proxy.url, sessions=100, first=1000, timeout_s=2.0)
    began = time.monotonic()
    stopped.signal(signal.SIGSTOP)
    proxy.freeze()
    next_ones = trial.crowd_at_once(server.url, sessions=200, first=2000, insist=True, vector=0, connecting=200)
    try:
        next_ones.ready(20.0)
    except AssertionError:
        trial.check(False, "", "slots are not back after 20 s")
    else:
        took, limit = time.monotonic() - began, 2 * HEARTBEAT_S + WINDOW_S + SLACK_S
        trial.in_time(took <= limit, f"200 slots back after {took:.1f} s", f"slots back after {took:.1f} s")
        # Far too early would be as wrong: a client that is only slow would lose its session.
        least = WINDOW_S if trial.ours else 0.0
        trial.check(took >= least, "not before the resume window", f"slots back after {took:.1f} s already")
    stopped.signal(signal.SIGCONT)
    proxy.thaw()
    for crowd in (stopped, half_open):
        # They are told: nobody steps a fresh environment in silence.
        time.sleep(1.0)
        report = crowd.report("stop")
        trial.check(not report.mixed, "no client steps another environment", f"mixed: {report.mixed[:3]}")
        lost = {error["session"] for error in report.errors if error["error"] == "SessionLost"}
        untyped = [error for error in report.errors if error["blame"] is None]
        trial.check(len(lost) == 100, f"{len(lost)} got SessionLost", f"{len(lost)} of 100 got SessionLost")
        trial.check(not untyped, "every error typed", f"untyped: {told(report.names())}")


@fault(
    "idle 10 minutes of simulated time, with heartbeats (1:60; idle limit 60 s, heartbeat 20 s)",
    "no session lost; without heartbeats they are",
    peer="has no idle limit",
)
def idle(trial: Trial) -> None:
    settings = {"OPENENV_IDLE_TIMEOUT_S": 1.0, "OPENENV_PING_INTERVAL_S": 0.33, "OPENENV_HEARTBEAT_S": 0.33}
    server = trial.serve("async", sessions=400, settings=settings)
    silent = trial.serve(
        "async", sessions=400, settings={**settings, "OPENENV_PING_INTERVAL_S": 0, "OPENENV_HEARTBEAT_S": 0}
    )
    crowd = trial.crowd(server.url, steps=10, pace_s=0.1)
    witness = trial.crowd(silent.url, sessions=20, first=1000, options={"websocket_ping_interval_s": 0})
    for each in (crowd, witness):
        each.say("pause")
    time.sleep(10)
    for each in (crowd, witness):
        each.say("resume")
    report = crowd.report()
    trial.no_errors(report)
    trial.counts(server, report)
    lost = witness.report().names()
    trial.check(
        lost.get("SessionLost", 0) >= 20, "without heartbeats all are closed", f"without heartbeats: {told(lost)}"
    )
