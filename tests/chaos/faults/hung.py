"""A step that never returns, wherever environments run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ...mini_client import Failed, MiniClient, Msgpack
from ..driver import told
from ..ledger import EPISODES, PROBES, Ledger
from ..served import Served
from ..trial import Trial, fault

HUNG = 5
TIMEOUT_S = 1.0
LATE_S = 0.1
BEFORE_S = 2.5
DURING_S = 3.0
SESSIONS = 200
# How many threads may be left behind, where that is what is looked at.
ABANDONED = 3
# How a hung call ends; a later error says what became of the session.
TIMEOUTS = {"StepTimeout", "TimeoutError"}
MUST = "typed answer at the deadline plus at most 100 ms; other sessions' P99 unmoved"


@fault("step that never returns: async", MUST, peer="as with a thread")
def hung_async(trial: Trial) -> None:
    _hung(trial, "async", {})


@fault("step that never returns: thread", MUST)
def hung_thread(trial: Trial) -> None:
    _hung(trial, "sync", {})


@fault("step that never returns: process", MUST + "; process child gone", peer="has no process isolation")
def hung_process(trial: Trial) -> None:
    _hung(trial, "sync", {"OPENENV_ISOLATION": "process"})


def _hung(trial: Trial, form: str, settings: dict[str, Any], beyond: bool = False) -> None:
    """Puts steps that never return among those of 200 sessions.

    Args:
        beyond: More threads than may be left behind are counted.
    """
    server = trial.serve(form, sessions=2 * SESSIONS, settings=settings)
    isolated = "OPENENV_ISOLATION" in settings
    # Two hundred processes take a while to be made: not all within the time for one call.
    plan = {"pace_s": 0.4, "connecting": 4, "vector": 4} if isolated else {}
    crowd = trial.crowd(server.url, timeout_s=TIMEOUT_S, **plan)
    crowd.say("phase before")
    time.sleep(BEFORE_S)
    places = Ledger(server.ledger_path).places
    crowd.say("phase during")
    crowd.say(f"dare {HUNG} hang 0")
    if trial.ours:
        took, name = asyncio.run(_asked_directly(server))
        trial.check(name == "StepTimeout", "answered by the server", f"the server answers {name}")
        trial.in_time(
            took <= TIMEOUT_S + LATE_S,
            f"server answers {name} {1000 * (took - TIMEOUT_S):.0f} ms after the deadline",
        )
    time.sleep(DURING_S)
    crowd.say("phase after")
    report = crowd.report()
    hung = set(range(SESSIONS - HUNG, SESSIONS))
    timeouts = [error for error in report.errors if error["error"] in TIMEOUTS]
    heard = {error["session"] for error in timeouts}
    trial.check(
        heard == hung,
        f"{len(heard)} sessions get {told(report.names())}",
        f"of {len(hung)} hung sessions, "
        f"{len(heard & hung)} got an error, and {len(heard - hung)} others: {told(report.names())}",
    )
    latest = max((error["after_s"] for error in timeouts), default=0.0) - TIMEOUT_S
    trial.in_time(latest <= LATE_S, f"at most {1000 * latest:.0f} ms late", f"{1000 * latest:.0f} ms late")
    others = [error for error in report.errors if error["session"] not in hung]
    trial.check(not others, "no other session failed", f"{len(others)} errors of others, as {others[:1]}")
    completed = {episode // EPISODES for episode in report.raw["completed"]}
    trial.check(hung <= completed, "the hung ones play again", f"{len(hung - completed)} of the hung play no more")
    trial.counts(server, report)
    trial.unmoved(report)
    if beyond:
        _check_stuck(trial, server, HUNG + 1)  # and the one of the client that asked directly
        trial.check(server.get("/ready")[0] == 200, "/ready 200: slots are left")
    if isolated:
        pids = {places[session] for session in hung if session in places}
        left = pids & set(server.marked())
        trial.check(not left and bool(pids), f"{len(pids)} processes gone", f"processes {left} are left")


@fault(
    "abandoned thread: steps that never return, more of them than may be left behind",
    "a default class has its one slot again at the deadline plus at most 100 ms; each thread is counted; at the "
    "limit /ready says 503, and no other session is affected",
    peer="has no deadlines",
)
def abandoned_thread(trial: Trial) -> None:
    settings = {"OPENENV_MAX_ABANDONED_THREADS": ABANDONED}
    _hung(trial, "sync", settings, beyond=True)
    single = trial.serve("single", sessions=1, settings=settings)
    asyncio.run(_one_after_the_other(trial, single))
    trial.check(single.get("/health")[0] == 200, "/health 200")
    status, said = single.get("/ready")
    trial.check(
        status == 503 and b"max_abandoned_threads" in said,
        "/ready 503 then",
        f"/ready answers {status}: {said!r:.200}",
    )
    _check_stuck(trial, single, ABANDONED + 1)


async def _one_after_the_other(trial: Trial, server: Served) -> None:
    """Sessions in the one slot, whose steps hang: each follows the one before at once, until the limit is reached."""
    waits: list[float] = []
    names: list[str] = []
    readiness: list[int] = []
    async with MiniClient(f"ws://127.0.0.1:{server.port}/ws", Msgpack()) as client:
        for number in range(ABANDONED + 1):
            session = (await client.call("open"))["session"]
            await client.call("reset", session=session, seq=1, kwargs={"seed": PROBES + number})
            readiness.append((await asyncio.to_thread(server.get, "/ready"))[0])
            began = time.monotonic()
            names.append(await _name_of(client, session))
            if number < ABANDONED:
                again = await client.call("open")
                waits.append(time.monotonic() - began - TIMEOUT_S)
                await client.call("close", session=again["session"])
        trial.check(set(names) == {"StepTimeout"}, f"{len(names)} of one slot got StepTimeout", f"got {names}")
        trial.check(set(readiness) == {200}, "/ready 200 up to the limit", f"/ready answers {readiness}")
        trial.in_time(max(waits) <= LATE_S, f"the next session {1000 * max(waits):.0f} ms after the deadline at most")
        try:
            await client.call("open", wait_s=LATE_S)
        except Failed as failed:
            trial.check(failed.name == "QueueTimeout", "then QueueTimeout", f"then {failed.name}")
        else:
            trial.check(False, "", "a session beyond the limit")


async def _name_of(client: MiniClient, session: str) -> str:
    """What the answer to a step that hangs is called."""
    try:
        await client.call("step", session=session, seq=2, action={"what": "hang", "request": 1}, deadline_s=TIMEOUT_S)
    except Failed as failed:
        return failed.name
    return "a result"


def _check_stuck(trial: Trial, server: Served, count: int) -> None:
    """Whether `/metrics` counts the threads that do not return."""
    lines = server.get("/metrics")[1].decode().splitlines()
    said = [line for line in lines if line.startswith("openenv_stuck_threads ")]
    trial.check(said == [f"openenv_stuck_threads {count:.1f}"], f"{count} stuck threads counted", f"counted {said}")


async def _asked_directly(server: Served) -> tuple[float, str]:
    """Seconds until the server answers a hung step, and the name of its answer, for a client of its own."""
    async with MiniClient(f"ws://127.0.0.1:{server.port}/ws", Msgpack()) as client:
        session = (await client.call("open"))["session"]
        await client.call("reset", session=session, seq=1, kwargs={"seed": PROBES})
        began = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_S + 5):
                await client.call(
                    "step", session=session, seq=2, action={"what": "hang", "request": 1}, deadline_s=TIMEOUT_S
                )
        except Failed as failed:
            return time.monotonic() - began, failed.name
        except TimeoutError:
            return time.monotonic() - began, "nothing"
        return time.monotonic() - began, "a result"
