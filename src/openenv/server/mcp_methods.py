"""What can be asked over `/mcp`, method by method: one table for HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import CapacityError, OpenEnvError, UnknownSession
from ..mcp.methods import NO_TOOLS, Ask, answer, outcome_of, read_call
from ..mcp.types import McpMethod
from ..protocol.jsonrpc import Fault, Fields, JsonRpcErrorCode, Request, error_reply, read_one, result_reply
from ..sessions.waiting import opened_session, result_of
from .mcp_class import has_tools
from .stays import Stay
from .visitor import Visitor

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["VERSIONS", "Conversation", "fault_of"]

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions of the MCP specification, with a handshake, that are spoken here."""

_NOTIFICATION = "notifications/"


class Conversation:
    """What one client asks, over one connection or by one request.

    Args:
        server: Whose sessions are used.
        visitor: Who asks.
        stay: The session that is used; None: there is none yet.
        keeps: Whether one that is opened is kept for what is asked next. Else a tool call that names no session gets
            an environment of its own, for itself alone.
        standard: Whether the client keeps to the MCP specification, in which a tool that fails has a result.

    Attributes:
        stay: The session that is used by what names none.
        opened: The sessions that it has opened, of which nobody may know yet.
    """

    def __init__(
        self,
        server: HTTPEnvServer,
        visitor: Visitor,
        *,
        stay: Stay | None = None,
        keeps: bool = False,
        standard: bool = False,
    ):
        self.stay = stay
        self.opened: list[Stay] = []
        self._server = server
        self._visitor = visitor
        self._keeps = keeps
        self._standard = standard

    async def answer(self, value: Any) -> Fields | None:
        """The reply to one message; None for one that wants none: a notification, or a client's own reply."""
        if isinstance(value, dict) and "method" not in value and ("result" in value or "error" in value):
            return None
        request_id = None
        try:
            request = read_one(value)
            request_id = request.id
            if not request.expects and (self._standard or request.method.startswith(_NOTIFICATION)):
                return None
            return result_reply(request_id, await self._do(request))
        except Fault as fault:
            return error_reply(request_id, fault)
        except OpenEnvError as error:
            return error_reply(request_id, fault_of(error))

    def end(self) -> None:
        """Ends the session that was opened and kept."""
        stay, self.stay = self.stay, None
        if stay is not None:
            stay.depart("its connection has ended")

    def give_up(self) -> None:
        """Ends what was opened for a client that has left without an answer: nobody will name it."""
        for stay in self.opened:
            stay.depart("its client has left while it was opened")

    async def _do(self, request: Request) -> Any:
        method = _METHODS.get(request.method)
        if method is None:
            known = ", ".join(_METHODS)
            raise Fault(JsonRpcErrorCode.METHOD_NOT_FOUND, f"Method not found: {request.method}; there are {known}")
        return await method(self, request)

    async def initialize(self, request: Request) -> Fields:
        """The handshake of the MCP specification: opens a session whose episode has begun."""
        self._check_tools()
        asked = request.params.get("protocolVersion")
        if self.stay is None:
            self.stay = await self._open(begins=True)
        self._standard = True
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self._server.env_name, "version": __version__},
        }

    async def ping(self, request: Request) -> Fields:
        """Says that there is somebody."""
        return {}

    async def use_tools(self, request: Request) -> Any:
        """Lists tools, or calls one."""
        ask = read_call(request.method, request.params, self._standard)
        self._check_tools()
        session_id = request.params.get("session_id")
        if session_id is not None:
            return outcome_of(await self._call(self._find(session_id), ask))
        if self.stay is None and self._keeps:
            self.stay = await self._open(self._server.porter.production)
        if self.stay is not None:
            return outcome_of(await self._call(self.stay, ask))
        visitor = self._visitor
        async with opened_session(self._server.manager, visitor.holder, visitor.peer) as session:
            if self._server.porter.production and ask.name is not None:
                await result_of(partial(session.reset, {}))
            return outcome_of(await result_of(partial(session.call, answer, ask)))

    async def create_session(self, request: Request) -> Fields:
        """A session that later requests name by `params.session_id`."""
        if self._keeps and self.stay is not None:
            return {"session_id": self.stay.id}
        stay = await self._open(self._server.porter.production)
        if self._keeps:
            self.stay = stay
        return {"session_id": stay.id}

    async def close_session(self, request: Request) -> Fields:
        """Ends one."""
        session_id = request.params.get("session_id")
        if session_id is None:
            raise Fault(JsonRpcErrorCode.INVALID_PARAMS, "Invalid params - 'session_id' is required")
        stay = self._find(session_id)
        if stay is self.stay:
            self.stay = None
        await stay.close()
        return {"session_id": stay.id, "closed": True}

    async def _open(self, begins: bool) -> Stay:
        """A new session; with `begins`, reset: whoever may not do that himself needs an episode to use tools in."""
        stay = await self._server.stays.open(self._visitor)
        if begins:
            try:
                await stay.call(lambda session, done: session.reset({}, done))
            except BaseException:
                stay.depart("its first reset failed")
                raise
        if not self._keeps:
            self.opened.append(stay)
        return stay

    async def _call(self, stay: Stay, ask: Ask) -> Any:
        return await stay.call(lambda session, done: session.call(answer, ask, done))

    def _find(self, session_id: Any) -> Stay:
        try:
            return self._server.stays.find(str(session_id), self._visitor)
        except UnknownSession as error:
            why = f"{error.message} (openenv/session/create, at /mcp)"
            raise Fault(JsonRpcErrorCode.INVALID_PARAMS, f"Unknown session_id: {session_id}: {why}") from error

    def _check_tools(self) -> None:
        if not has_tools(self._server.env_factory):
            raise Fault(JsonRpcErrorCode.INTERNAL_ERROR, NO_TOOLS)


def fault_of(error: OpenEnvError) -> Fault:
    """An error of ours as JSON-RPC says it."""
    code = JsonRpcErrorCode.SERVER_ERROR if isinstance(error, CapacityError) else JsonRpcErrorCode.INTERNAL_ERROR
    facts = {key: value for key, value in error.facts().items() if key != "message"}
    return Fault(code, error.message, {**error.data, **facts})


_METHODS: dict[str, Callable[[Conversation, Request], Awaitable[Any]]] = {
    "initialize": Conversation.initialize,
    "ping": Conversation.ping,
    McpMethod.TOOLS_LIST: Conversation.use_tools,
    McpMethod.TOOLS_CALL: Conversation.use_tools,
    "openenv/session/create": Conversation.create_session,
    "openenv/session/close": Conversation.close_session,
}
