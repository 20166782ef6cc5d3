"""What machines do: processes that are killed."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from contextlib import suppress

from openenv import GenericEnvClient
from openenv.errors import OpenEnvError

from ..driver import told
from ..ledger import PROBES, Ledger
from ..served import Served, holds
from ..trial import Trial, fault

WORKERS = 4
BEFORE_S = 2.0
LOST_WITHIN_S = 1.0
REPLACED_WITHIN_S = 3.0
GONE_WITHIN_S = 2.0
# A client notices with its next step at the latest.
PACE_S = 0.2


@fault(
    "kill -9 of one worker of four",
    "only its sessions fail, with SessionLost, within 1 s; replaced within 3 s; others' P99 unmoved",
)
def worker(trial: Trial) -> None:
    server = trial.serve("async", workers=WORKERS, sessions=800)
    crowd = trial.crowd(server.url, pace_s=PACE_S)
    crowd.say("phase before")
    time.sleep(BEFORE_S)
    workers = set(server.children())
    places = Ledger(server.ledger_path).places
    victim = max(workers, key=lambda pid: (list(places.values()).count(pid), pid))
    victims = {session for session, pid in places.items() if pid == victim}
    crowd.say("phase during")
    killed = time.monotonic()
    server.tell(signal.SIGKILL, victim)
    replaced = holds(lambda: _answers_anew(server, workers), 4.0)
    time.sleep(max(0.0, 3.0 - (time.monotonic() - killed)))
    crowd.say("phase after")
    report = crowd.report()
    heard = {error["session"] for error in report.errors}
    trial.check(bool(victims), f"{len(victims)} sessions were there", "no session was on that worker")
    trial.check(
        heard <= victims, "no other session failed", f"{len(heard - victims)} sessions of other workers failed"
    )
    trial.check(victims <= heard, "each got an error", f"{len(victims - heard)} of its sessions got no error")
    names = report.names()
    trial.check(set(names) <= {"SessionLost"}, "SessionLost", f"got {told(names)}")
    first = {error["session"]: error["at"] - killed for error in reversed(report.errors)}
    latest = max(first.values(), default=0.0)
    trial.in_time(latest <= LOST_WITHIN_S, f"reported within {latest:.2f} s", f"reported after {latest:.2f} s")
    trial.in_time(
        replaced is not None and replaced <= REPLACED_WITHIN_S,
        f"replaced after {replaced or 0:.1f} s",
        f"replaced after {replaced:.1f} s" if replaced else "not replaced",
    )
    trial.counts(server, report)
    trial.unmoved(report)


def _answers_anew(server: Served, known: set[int]) -> bool:
    """Whether a process that was not there before steps an environment."""

    async def pid() -> int:
        async with GenericEnvClient(server.url, message_timeout_s=5.0) as client:
            await client.reset(seed=PROBES)
            return (await client.step({"request": 0})).observation["pid"]

    with suppress(OpenEnvError):
        return asyncio.run(pid()) not in known
    return False


@fault("kill -9 of the parent", "workers exit within 2 s, no orphan process, port free")
def parent(trial: Trial) -> None:
    # Clients look for their server no longer than a session would have waited for them.
    settings = {"OPENENV_RESUME_WINDOW_S": 2}
    server = trial.serve("async", workers=WORKERS if trial.ours else 2, sessions=800, settings=settings)
    crowd = trial.crowd(server.url, pace_s=PACE_S, retry=False)
    count = len(server.marked())
    server.tell(signal.SIGKILL)
    gone = holds(lambda: not server.marked(), 4.0)
    trial.in_time(
        gone is not None and gone <= GONE_WITHIN_S,
        f"{count} processes gone after {gone or 0:.2f} s",
        f"{len(server.marked())} of {count} processes are left after {gone or 4:.1f} s",
    )
    trial.check(_is_free(server.port), "port free")
    report = crowd.report("" if trial.ours else "stop", 20.0)
    names, heard = report.names(), {error["session"] for error in report.errors}
    trial.check(set(names) <= {"SessionLost"} and len(heard) == 200, f"{len(heard)} clients get {told(names)}")


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
