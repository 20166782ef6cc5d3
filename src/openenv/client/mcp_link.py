"""JSON-RPC with the `/mcp` of a server, over one WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

from pydantic_core import from_json, to_json

from ..errors import (
    MessageTooLarge,
    OpenEnvError,
    ProtocolViolation,
    ServerFull,
    StepFailed,
    StepTimeout,
    ToolFailed,
    from_wire,
)
from .transport import Transport

__all__ = ["McpLink", "rpc_error"]

CAPACITY = -32000


class McpLink:
    """Requests and their replies; the connection is one session of the environment.

    Args:
        max_message_bytes: Largest message that is sent.

    Attributes:
        error: Why there is no connection any more; None while there is one.
        owner: The client, which stays for as long as its connection does: who else would say goodbye.
    """

    def __init__(self, max_message_bytes: int):
        self.owner: object = None
        self.error: OpenEnvError | None = None
        self._max_bytes = max_message_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    def begin(self, transport: Transport) -> None:
        """Takes the connection."""
        self._transport = transport

    async def ask(self, method: str, params: dict[str, Any], timeout_s: float | None) -> Any:
        """The result of one request.

        Raises:
            ToolFailed: The server could not do it.
            StepTimeout: No reply in time; it is dropped when it comes.
            ServerFull: There is no session.
            MessageTooLarge: It is over the limit, and was not sent.
            OpenEnvError: Whatever else the server said, or why the connection has ended.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self._transport is not None
        request_id = next(self._ids)
        frame = to_json({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        if len(frame) > self._max_bytes:
            size = f"a message of {len(frame)} bytes is over the limit of {self._max_bytes}"
            raise MessageTooLarge(f"{size} (max_message_size_mb)")
        waiter = self._waiting[request_id] = self._loop.create_future()
        try:
            self._transport.send(frame)
            async with asyncio.timeout(timeout_s):
                reply = await waiter
        except TimeoutError as error:
            if isinstance(error, OpenEnvError):
                raise
            late = f"no reply to {method} within {timeout_s:g} s (message_timeout_s)"
            raise StepTimeout(f"{late}; the environment may still be at it") from None
        finally:
            self._waiting.pop(request_id, None)
        if reply.get("error") is not None:
            raise rpc_error(str(params.get("name", "")), reply["error"])
        return reply.get("result")

    async def aclose(self) -> None:
        """Ends the connection, and the session with it."""
        if self._transport is not None and self._loop is asyncio.get_running_loop():
            await self._transport.aclose()

    def received(self, frame: bytes) -> None:
        try:
            reply = from_json(frame)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self._fail(ProtocolViolation(f"the server sent what is no reply: {frame[:200]!r}"))
            if self._transport is not None:
                self._transport.drop()
            return
        number = reply.get("id")
        waiter = self._waiting.get(number) if type(number) is int else None
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def lost(self, error: OpenEnvError) -> None:
        self._fail(error)

    def _fail(self, error: OpenEnvError) -> None:
        self.error = self.error or error
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(self.error)


def rpc_error(tool: str, error: Any) -> OpenEnvError:
    """What a JSON-RPC error stands for."""
    if not isinstance(error, Mapping):
        return ProtocolViolation(f"the server sent an error that is none: {error!r:.200}")
    message, data = str(error.get("message", "")), error.get("data")
    failure = f"Tool {tool!r} failed: {message}"
    facts: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    if "error_type" in facts:
        return ToolFailed(tool, str(facts["error_type"]), failure)
    if "error" in facts:
        return from_wire({**facts, "message": message})
    if error.get("code") == CAPACITY and "max_sessions" in facts:
        return from_wire({**facts, "error": ServerFull.__name__, "message": message})
    return ToolFailed(tool, "execution_error", failure) if tool else StepFailed(message)
