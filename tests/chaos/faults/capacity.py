"""More clients than a server has room for."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from ...mini_client import Failed, MiniClient, Msgpack
from ..driver import told
from ..ledger import Ledger
from ..served import Served
from ..trial import Trial, fault

CLIENTS = 1000
SLOTS = 100
IN_LINE = 100
REFUSED_AFTER_S = 0.5


@fault(
    "1,000 connects to a server with 100 slots",
    "100 served at a time, the rest in order, none refused before its deadline",
    sessions=CLIENTS,
)
def admission(trial: Trial) -> None:
    workers = 2 if trial.ours else 1  # the peer's limit is that of each worker
    settings = {"OPENENV_QUEUE_TIMEOUT_S": 60}
    server = trial.serve("async", workers=workers, sessions=SLOTS, settings=settings)
    crowd = trial.crowd_at_once(
        server.url, sessions=CLIENTS, vector=0, episodes=1, steps=3, pace_s=0.1, connecting=CLIENTS, timeout_s=60.0
    )
    report = crowd.report("", 90.0)
    trial.check(
        report.completed == CLIENTS and not report.errors,
        f"{report.completed} of {CLIENTS} served",
        f"{report.completed} of {CLIENTS} served, {len(report.errors)} errors: {told(report.names())}",
    )
    most = Ledger(server.ledger_path).most_at_once
    trial.check(most <= SLOTS, f"{most} at a time")
    if trial.ours:
        trial.counts(server, report)
        asyncio.run(_in_line(trial, server))


async def _in_line(trial: Trial, server: Served) -> None:
    """Asks one after the other, and looks at who is served when places come free."""
    url = f"ws://127.0.0.1:{server.port}/ws"
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(MiniClient(url, Msgpack()))
        held = [(await holder.call("open"))["session"] for _ in range(SLOTS)]
        clients = [await stack.enter_async_context(MiniClient(url, Msgpack())) for _ in range(IN_LINE)]
        began = time.monotonic()
        try:
            await holder.call("open", wait_s=REFUSED_AFTER_S)
        except Failed as refused:
            waited = time.monotonic() - began
            trial.check(
                refused.name == "QueueTimeout" and waited >= REFUSED_AFTER_S and "retry_after_s" in refused.fault,
                f"refused after {waited:.2f} of {REFUSED_AFTER_S} s with {refused.name} and retry_after_s",
                f"refused after {waited:.2f} of {REFUSED_AFTER_S} s: {refused.fault}",
            )
        served: list[int] = []

        async def wait(number: int, request: int) -> None:
            reply = await clients[number].next_reply(request)
            assert reply.get("ok"), reply
            served.append(number)

        waiting = []
        for number, client in enumerate(clients):
            request = await client.send("open", wait_s=30.0)
            await client.call("heartbeat")  # its answer tells that `open` was read before the next client asks
            waiting.append(asyncio.create_task(wait(number, request)))
        early = list(served)
        for place, session in enumerate(held):
            await holder.call("close", session=session)
            async with asyncio.timeout(10):
                await asyncio.wait([waiting[place]])
        out = sum(1 for place, number in enumerate(served) if place != number)
        trial.check(
            not early and not out, f"{len(served)} in line served in order", f"{out} out of order: {served[:20]}"
        )
