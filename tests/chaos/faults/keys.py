"""Clients that may not come in, on every route and transport."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from openenv.server.auth import Keyring

from ..served import Served
from ..trial import Trial, fault

CONTROL, AGENT, VIEW = "control-key-0123456789", "agent-key-0123456789", "view-key-0123456789"
WRONG = "control-key-0123456780"
KEYS = f"control:{CONTROL},agent:{AGENT},view:{VIEW}"
OPEN = {"/health", "/ready"}
# Beside those that the OpenAPI document names.
MORE_ROUTES = (("GET", "/docs"), ("GET", "/redoc"), ("GET", "/openapi.json"), ("GET", "/nothing"), ("DELETE", "/ws"))
BODIES: dict[str, Any] = {"/step": {"action": {}}, "/reset": {}, "/web/step": {"action": {}}, "/web/reset": {}}
TRANSPORTS = (None, "openenv.v2.json", "openenv.v2.msgpack")
DRIVING = {"/reset", "/step", "/state", "/sessions", "/web/reset", "/web/step", "/web/state"}
TURNS = 4000
ALIKE = 0.15


@fault(
    "no key, wrong key, key of the wrong scope, other Origin",
    "refused on every route and transport; timing of the comparison constant",
)
def keys(trial: Trial) -> None:
    settings = {"OPENENV_API_KEYS": KEYS, "OPENENV_MAX_KEY_FAILURES": 100_000}
    server = trial.serve("async", workers=2, sessions=1000, settings=settings)
    crowd = trial.crowd(server.url, options={"api_key": CONTROL} if trial.ours else {})
    routes = _routes(server)
    for who, headers in (("no key", {}), ("wrong key", _bearer(WRONG))):
        _refused(trial, server, routes, who, headers, {401})
        asyncio.run(_handshakes(trial, server, who, headers, 401))
    if trial.ours:
        foreign = {"Origin": "http://evil.example", **_bearer(CONTROL)}
        _refused(trial, server, routes, "other Origin", foreign, {403})
        asyncio.run(_handshakes(trial, server, "other Origin", foreign, 403))
        driving = [(method, path) for method, path in routes if path in DRIVING]
        for who, key in (("agent", AGENT), ("view", VIEW)):
            _refused(trial, server, driving, f"scope {who}", _bearer(key), {403})
        asyncio.run(_handshakes(trial, server, "scope view", _bearer(VIEW), 403))
        asyncio.run(_agent(trial, server))
        _timing(trial)
    report = crowd.report()
    trial.no_errors(report)
    trial.counts(server, report)


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _routes(server: Served) -> list[tuple[str, str]]:
    status, body = server.get("/openapi.json", _bearer(CONTROL))
    assert status == 200, body
    paths = json.loads(body)["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods if path not in OPEN]
    return [*found, *MORE_ROUTES]


def _refused(
    trial: Trial,
    server: Served,
    routes: list[tuple[str, str]],
    who: str,
    headers: Mapping[str, str],
    statuses: set[int],
) -> None:
    answered = []
    for method, path in routes:
        status, _ = server.get(path, headers, method, BODIES.get(path))
        if status not in statuses:
            answered.append(f"{method} {path}: {status}")
    trial.check(
        not answered,
        f"{who}: {len(routes)} routes refuse",
        f"{who}: {len(answered)} of {len(routes)} routes answer, as {answered[:3]}",
    )


async def _handshakes(trial: Trial, server: Served, who: str, headers: dict[str, str], status: int) -> None:
    """No transport lets it in."""
    let_in = []
    for subprotocol in TRANSPORTS if trial.ours else TRANSPORTS[:1]:
        try:
            async with connect(
                f"ws://127.0.0.1:{server.port}/ws",
                subprotocols=subprotocol and [subprotocol],
                additional_headers=headers,
            ) as socket:
                await socket.send(json.dumps({"type": "reset", "data": {"seed": 990_000_002}}))
                let_in.append(f"{subprotocol or 'v1'}: {str(await socket.recv())[:60]}")
        except InvalidStatus as refused:
            if refused.response.status_code != status:
                let_in.append(f"{subprotocol or 'v1'}: {refused.response.status_code}")
    trial.check(not let_in, f"{who}: every transport refuses", f"{who}: let in, as {let_in}")


async def _agent(trial: Trial, server: Served) -> None:
    """A key of scope agent comes in, and drives no episode."""
    done = []
    url, headers = f"ws://127.0.0.1:{server.port}/ws", _bearer(AGENT)
    async with connect(url, additional_headers=headers) as socket:
        for message in ({"type": "reset"}, {"type": "step", "data": {}}, {"type": "state"}):
            await socket.send(json.dumps(message))
            answer = json.loads(await socket.recv())
            if answer["type"] != "error" or answer["data"]["error"] != "Forbidden":
                done.append(answer)
    async with connect(url, additional_headers=headers, subprotocols=[Subprotocol("openenv.v2.json")]) as socket:
        await socket.recv()
        calls: list[dict[str, Any]] = [
            {"op": "reset", "seq": 1},
            {"op": "step", "seq": 1, "action": {}},
            {"op": "state"},
        ]
        ask = _asker(socket)
        session = (await ask({"op": "open"}))["session"]
        for call in calls:
            answer = await ask({**call, "session": session})
            if answer.get("error", {}).get("error") != "Forbidden":
                done.append(answer)
        # Within a batch nothing else holds.
        answer = await ask({"op": "batch", "calls": [{**call, "session": session} for call in calls]})
        results = answer.get("results", [])
        done += [each for each in results if each.get("error", {}).get("error") != "Forbidden"]
    trial.check(not done, "scope agent drives no episode", f"scope agent: {done[:3]}")


def _asker(socket: Any) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    last = 0

    async def ask(call: dict[str, Any]) -> dict[str, Any]:
        nonlocal last
        last += 1
        await socket.send(json.dumps({"id": last, **call}))
        reply: dict[str, Any] = json.loads(await socket.recv())
        return reply

    return ask


def _timing(trial: Trial) -> None:
    """How long a key is looked at says nothing about how much of it is right."""
    ring = Keyring.parse(",".join(f"control:{number:04d}{'k' * 40}" for number in range(20)))
    held = f"0000{'k' * 40}"
    candidates = {
        "first byte wrong": "x" + held[1:],
        "last byte wrong": held[:-1] + "x",
        "right": held,
        "right, the last of all": f"0019{'k' * 40}",
    }
    took: dict[str, list[int]] = {name: [] for name in candidates}
    for _ in range(TURNS):
        for name, key in candidates.items():
            began = time.perf_counter_ns()
            ring.find(key.encode())
            took[name].append(time.perf_counter_ns() - began)
    medians = {name: statistics.median(times) for name, times in took.items()}
    spread = max(medians.values()) / min(medians.values()) - 1
    said = f"timing of {len(candidates)} kinds of keys within {100 * spread:.0f} %"
    trial.in_time(spread <= ALIKE, said, f"{said}: {medians}")
