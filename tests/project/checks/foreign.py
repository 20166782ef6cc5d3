"""A server of protocol v1 that shares nothing with ours, and whose answers can be exchanged; and no servers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

__all__ = ["PAYLOAD", "SCHEMAS", "foreign", "raw"]

Talk = Callable[[WebSocket, Any], Awaitable[None]]

_NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}}
SCHEMAS: dict[str, Any] = {
    "action": {**_NUMBER, "required": ["number"], "additionalProperties": False},
    "observation": {**_NUMBER, "required": ["number"]},
    "state": {"type": "object", "properties": {"step_count": {"type": "integer"}}},
}
PAYLOAD: dict[str, Any] = {"observation": {"number": 1}, "reward": 0.5, "done": False}
ROUTES = ("/health", "/metadata", "/schema", "/openapi.json", "/mcp", "/reset", "/step", "/state")


def foreign(frames: Mapping[str, Any] | None = None, **answers: Any) -> Starlette:
    """The app.

    Args:
        frames: What kinds of frames are answered by instead; None: not at all; an integer: the connection is closed
            with that code.
        answers: What routes answer instead, by their names without slash: contents, a status, or a whole response.
            One that is None is not there.
    """
    usual: dict[str, Any] = {
        "health": {"status": "healthy"},
        "metadata": {"name": "foreign", "description": "of somebody else"},
        "schema": SCHEMAS,
        "openapi.json": {
            "openapi": "3.1.0",
            "info": {"title": "foreign", "version": "7"},
            "paths": {path: {} for path in ROUTES if answers.get(path[1:], True) is not None},
        },
        "reset": PAYLOAD,
        "step": JSONResponse({"detail": []}, 422),
        "state": {"step_count": 0},
    }
    given = {**usual, **{name.replace("openapi", "openapi.json"): each for name, each in answers.items()}}

    def endpoint(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if name == "mcp":
                return _rpc(await request.body(), given.get("mcp"))
            value = given[name]
            if isinstance(value, int):
                return Response("no", value)
            return value if isinstance(value, Response) else JSONResponse(value)

        return answer

    names = [name for name in [*usual, "mcp"] if given.get(name, True) is not None]
    routes: list[Any] = [Route(f"/{name}", endpoint(name), methods=["GET", "POST"]) for name in names]

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await _answered(websocket, await websocket.receive_text(), frames or {})

    return Starlette(routes=[*routes, WebSocketRoute("/ws", talk)])


async def _answered(websocket: WebSocket, text: str, frames: Mapping[str, Any]) -> None:
    kind = _kind(text)
    reply = frames.get(kind, _REPLIES.get(kind, _error("INVALID_JSON")))
    if isinstance(reply, int):
        await websocket.close(reply)
        raise WebSocketDisconnect
    if reply is not None:
        await websocket.send_text(reply if isinstance(reply, str) else json.dumps(reply))


def _kind(text: str) -> str:
    """`reset`, `step` and so on; `json`, `unknown`, `odd` or `invalid` for what is none of them."""
    try:
        frame = json.loads(text)
    except ValueError:
        return "json"
    if not isinstance(frame, dict) or not isinstance(frame.get("data", {}), dict):
        return "odd"
    kind = frame.get("type")
    if kind not in {"reset", "step", "state", "close"}:
        return "unknown"
    return "invalid" if kind == "step" and set(frame.get("data", {})) != {"number"} else str(kind)


def _error(code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": "no", "code": code, **more}}


_REPLIES: dict[str, Any] = {
    "reset": {"type": "observation", "data": PAYLOAD},
    "step": {"type": "observation", "data": PAYLOAD},
    "state": {"type": "state", "data": {"step_count": 0}},
    "close": 1000,
    "json": _error("INVALID_JSON"),
    "unknown": _error("UNKNOWN_TYPE"),
    "invalid": _error("VALIDATION_ERROR"),
}


def _rpc(body: bytes, instead: Any) -> Response:
    if instead is not None:
        return Response("no", instead) if isinstance(instead, int) else JSONResponse(instead)
    try:
        frame = json.loads(body)
    except ValueError:
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}})
    if "method" not in frame:
        return JSONResponse({"jsonrpc": "2.0", "id": frame.get("id"), "error": {"code": -32600, "message": "no"}})
    if frame["method"] != "tools/list":
        return JSONResponse({"jsonrpc": "2.0", "id": frame["id"], "error": {"code": -32601, "message": "no"}})
    tools = [{"name": "double", "inputSchema": {"type": "object"}}]
    return JSONResponse({"jsonrpc": "2.0", "id": frame["id"], "result": {"tools": tools}})


@contextmanager
def raw(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Whatever a function does with each connection that comes; yields `host:port`.

    Args:
        behave: Runs in a thread; is to end soon after the event is set.
    """
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=one, args=(connection,))
            threads.append(thread)
            thread.start()

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection, over)

    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = threading.Thread(target=serve)
    acceptor.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [acceptor, *threads]:
            thread.join(5)
            assert not thread.is_alive()
