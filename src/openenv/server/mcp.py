"""The endpoint `/mcp`: tools of environments for clients of the Model Context Protocol, over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response, WebSocket

from ..errors import OpenEnvError, UnknownSession
from ..protocol.jsonrpc import Fields, JsonRpcErrorCode, RpcError, encode, error_reply, read
from .auth import Principal
from .mcp_methods import VERSIONS, MCPConversation, jsonrpc_fault
from .middleware import principal_of, server_of
from .proxy import forward_to_owner
from .shared_sessions import SharedSession

if TYPE_CHECKING:
    from .server import EnvironmentServer

logger = logging.getLogger("openenv.server")

MCP_PATH = "/mcp"
SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
SUBPROTOCOL = "mcp"
CLOSE_TOO_BIG = 1009
# Clients with newer revisions of the specification read this code as "the data lists the supported revisions".
UNSUPPORTED_VERSION = -32022
_ANSWERS = ("application/json", "application/*", "*/*")


async def post(request: Request) -> Response:
    """One JSON-RPC request, or a list of them.

    A request names its session in the header Mcp-Session-Id (from the answer to `initialize`), or in
    `params.session_id` (from `openenv/session/create`). Without one, a tool call gets a new environment.
    """
    server = server_of(request)
    principal = principal_of(request.scope, server)
    refused = _header_error(request)
    if refused is not None:
        return refused
    try:
        value = read(await request.body())
    except RpcError as fault:
        return _reply(error_reply(None, fault))
    named = request.headers.get(SESSION_HEADER)
    single = value if isinstance(value, dict) else {}
    # Only a single request can be forwarded: the sessions that a batch names in its params must be in this process.
    params, request_id = single.get("params"), single.get("id")
    elsewhere = named or (params.get("session_id") if isinstance(params, dict) else None)
    request_id = request_id if isinstance(request_id, (str, int)) else None
    if isinstance(elsewhere, str):
        try:
            answered = await forward_to_owner(request, server, elsewhere)
        except OpenEnvError as error:
            return _reply(error_reply(request_id, jsonrpc_fault(error)), 200 if named is None else 404)
        if answered is not None:
            return answered
    try:
        shared = None if named is None else server.shared_sessions.find(named, principal)
    except UnknownSession as error:
        return _reply(error_reply(request_id, _session_not_found(error)), 404)
    return await _answer_post(request, server, principal, shared, value)


async def delete(request: Request) -> Response:
    """Ends the session that the header Mcp-Session-Id names."""
    server = server_of(request)
    principal = principal_of(request.scope, server)
    named = request.headers.get(SESSION_HEADER)
    if named is None:
        fault = RpcError(JsonRpcErrorCode.INVALID_REQUEST, "DELETE /mcp needs the header Mcp-Session-Id")
        return _reply(error_reply(None, fault), 400)
    try:
        answered = await forward_to_owner(request, server, named)
        if answered is None:
            await server.shared_sessions.find(named, principal).close()
            answered = Response(status_code=200)
    except UnknownSession as error:
        return _reply(error_reply(None, _session_not_found(error)), 404)
    return answered


async def stream(request: Request) -> Response:
    """Refuses a stream of server messages: this server sends none."""
    fault = RpcError(JsonRpcErrorCode.INVALID_REQUEST, "this server has no event stream: POST requests to /mcp")
    return _reply(error_reply(None, fault), 405, {"allow": "POST, DELETE"})


async def socket(websocket: WebSocket) -> None:
    """One client over WebSocket: requests one after the other, and a session that lives as long as the connection."""
    server = server_of(websocket)
    principal = principal_of(websocket.scope, server)
    offered = websocket.scope.get("subprotocols") or ()
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    conversation = MCPConversation(server, principal, keeps=True)
    frames = FrameQueue(server.settings.max_in_flight, server.settings.max_message_bytes)
    # Reads continuously, to notice during a call that the client disconnects.
    reading = asyncio.create_task(read_frames(websocket, frames))
    serving = asyncio.create_task(_serve(websocket, frames, conversation))
    try:
        await asyncio.wait([reading, serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Must not await anything: a server that cancels this task does not let it wait.
        for task in (reading, serving):
            if not task.cancel() and not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("a client of /mcp has disconnected: %s", error)
        conversation.end()


class FrameQueue:
    """A queue of frames, bounded by their number and by their bytes. One frame always fits into an empty queue.

    Args:
        most: Frames that may wait.
        most_bytes: Bytes that may wait, in characters for text frames.
    """

    def __init__(self, most: int, most_bytes: int):
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: deque[str | bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def put(self, frame: str | bytes) -> None:
        async with self._changed:
            while self._waiting and (len(self._waiting) >= self._most or self._bytes + len(frame) > self._most_bytes):
                await self._changed.wait()
            self._waiting.append(frame)
            self._bytes += len(frame)
            self._changed.notify_all()

    async def get(self) -> str | bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting)
            frame = self._waiting.popleft()
            self._bytes -= len(frame)
            self._changed.notify_all()
            return frame


async def read_frames(websocket: WebSocket, frames: FrameQueue) -> None:
    """Puts the frames of a client into a queue until it disconnects."""
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        text = message.get("text")
        await frames.put(text if text is not None else message.get("bytes") or b"")


async def _serve(websocket: WebSocket, frames: FrameQueue, conversation: MCPConversation) -> None:
    settings = websocket.app.state.openenv.settings
    while len(text := await frames.get()) <= settings.max_message_bytes:
        try:
            reply = await _replies(conversation, read(text), settings.max_batch)
        except RpcError as fault:
            reply = error_reply(None, fault)
        if reply is not None:
            await websocket.send_text(encode(reply).decode())
    await websocket.close(CLOSE_TOO_BIG)


async def _answer_post(
    request: Request, server: EnvironmentServer, principal: Principal, shared: SharedSession | None, value: Any
) -> Response:
    standard = shared is not None or VERSION_HEADER in request.headers
    conversation = MCPConversation(server, principal, shared=shared, standard=standard)
    try:
        replies = await _replies(conversation, value, server.settings.max_batch)
    except RpcError as fault:
        return _reply(error_reply(None, fault))
    except BaseException:
        conversation.give_up()
        raise
    if conversation.opened and await request.is_disconnected():
        conversation.give_up()
    if replies is None:
        return Response(status_code=202)
    headers = {}
    if conversation.shared is not None and shared is None:
        headers[SESSION_HEADER] = conversation.shared.id
    return _reply(replies, 200, headers)


async def _replies(conversation: MCPConversation, value: Any, most: int) -> Fields | list[Fields] | None:
    """The reply to a message; for a list of messages, the replies in the same order.

    Raises:
        RpcError: The list is empty or too long.
    """
    if not isinstance(value, list):
        return await conversation.answer(value)
    if not 0 < len(value) <= most:
        limit = f"a batch holds 1 to {most} requests (max_batch, OPENENV_MAX_BATCH), not {len(value)}"
        raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, limit)
    replies = [reply for each in value if (reply := await conversation.answer(each)) is not None]
    return replies or None


def _header_error(request: Request) -> Response | None:
    """The error response for unsupported headers; None if the server supports them."""
    accepted = [part.partition(";")[0].strip() for part in request.headers.get("accept", "*/*").split(",")]
    if not any(kind in _ANSWERS for kind in accepted):
        fault = RpcError(
            JsonRpcErrorCode.INVALID_REQUEST, "responses are application/json: list it in the header Accept"
        )
        return _reply(error_reply(None, fault), 406)
    version = request.headers.get(VERSION_HEADER)
    if version is None or version in VERSIONS:
        return None
    facts = {"supported": list(VERSIONS), "requested": version}
    message = f"MCP-Protocol-Version {version!r} is not supported: call initialize with one of {VERSIONS}"
    return _reply(error_reply(None, RpcError(UNSUPPORTED_VERSION, message, facts)), 400)


def _session_not_found(error: UnknownSession) -> RpcError:
    return RpcError(JsonRpcErrorCode.INVALID_REQUEST, f"Session not found: {error.message}; call initialize first")


def _reply(fields: Fields | list[Fields], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(fields), status, headers, media_type="application/json")
