"""The socket beside the page: tells an episode as it goes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from pydantic_core import to_json

from ..errors import OpenEnvError, StepFailed
from ..protocol.report import error_facts
from .environment_server import HTTPEnvServer
from .guard import visitor_of
from .http_sessions import COOKIE, HEADER, TOKEN_HEADER
from .stay import Stay
from .visitor import Visitor
from .web_episode import Episode

__all__ = ["SOCKET_PATH", "SUBPROTOCOL", "send", "socket"]

SOCKET_PATH = "/ws/ui"
SUBPROTOCOL = "openenv.ui"
"""Taken where it is offered: browsers that show a key by another subprotocol want one to be taken."""
CLOSE_POLICY = 1008


async def socket(websocket: WebSocket) -> None:
    """Tells the episode of the session that is named, now and after each call by the routes of the page.

    What the client sends is not looked at, and its presence does not keep the session from being idle.
    """
    server = websocket.app.state.openenv
    assert isinstance(server, HTTPEnvServer)
    visitor = visitor_of(websocket.scope, server)
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope.get("subprotocols", ()) else None)
    telling = asyncio.create_task(_tell(websocket, server, visitor))
    leaving = asyncio.create_task(_left(websocket))
    try:
        await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, leaving):
            task.cancel()


async def _tell(websocket: WebSocket, server: HTTPEnvServer, visitor: Visitor) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client is gone
        try:
            await _follow(websocket, _stay(websocket, server, visitor))
        except OpenEnvError as error:
            await send(websocket, {"type": "error", "data": error_facts(error)})
            await websocket.close(CLOSE_POLICY, type(error).__name__)


def _stay(websocket: WebSocket, server: HTTPEnvServer, visitor: Visitor) -> Stay:
    query, headers = websocket.query_params, websocket.headers
    named = query.get("session_id") or headers.get(HEADER) or websocket.cookies.get(COOKIE, "")
    return server.stays.find(named, visitor, query.get("token") or headers.get(TOKEN_HEADER))


async def _follow(websocket: WebSocket, stay: Stay) -> None:
    """Sends what there is when there is something new: whoever reads slowly misses what was in between.

    Raises:
        SessionLost: The session has ended.
        StepFailed: What there is cannot be said in JSON.
    """
    episode, changed = Episode.of(stay), asyncio.Event()
    ending: list[OpenEnvError] = []

    def ended(error: OpenEnvError) -> None:
        ending.append(error)
        changed.set()

    episode.watchers.add(changed)
    stay.on_lost.append(ended)
    try:
        while not ending:
            changed.clear()
            await send(websocket, {"type": "state_update", "episode_state": episode.state.model_dump()})
            await changed.wait()
    finally:
        episode.watchers.discard(changed)
        if ended in stay.on_lost:
            stay.on_lost.remove(ended)
    raise ending[0]


async def _left(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def send(websocket: WebSocket, message: dict[str, Any]) -> None:
    """Sends a message as JSON, with NaN and infinity as texts.

    Raises:
        StepFailed: JSON cannot say it.
    """
    try:
        text = to_json(message, inf_nan_mode="strings").decode()
    except ValueError as error:  # nesting to the limit of what the protocol can say, and a few levels more here
        raise StepFailed(f"the episode cannot be shown: {error}") from error
    await websocket.send_text(text)
