"""The MCP methods of a server, for `/mcp`, for `mcp` frames of v1 and for `mcp` requests of v2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import CapacityError, OpenEnvError, UnknownSession
from ..mcp.environment import FactoryInMode, MCPEnvironment, answer
from ..mcp.types import GENERIC_ACTIONS, NO_TOOLS, McpMethod, ToolRequest, outcome_of, read_call, with_tools
from ..protocol.jsonrpc import Fields, JsonRpcErrorCode, RpcError, RpcRequest, error_reply, read_one, result_reply
from ..runtime.executor import Done
from ..runtime.manager import opened_session, result_of
from ..runtime.profile import class_of
from ..runtime.session import Session
from .auth import Principal
from .shared_sessions import SharedSession

if TYPE_CHECKING:
    from .server import EnvironmentServer


def has_tools(factory: Callable[[], Any]) -> bool:
    """Whether the environments may have tools, judged by their class."""
    cls = class_of(factory)
    return cls is None or issubclass(cls, MCPEnvironment)


def action_type_of(factory: Callable[[], Any], action_cls: Any) -> Any:
    """The type of the actions that clients may send for a step; with tool actions if the environment has tools.

    For a factory without a known class, it includes tool actions only if the action class allows any fields.
    """
    cls = class_of(factory)
    known = cls is not None and issubclass(cls, MCPEnvironment)
    return with_tools(action_cls) if known or (cls is None and action_cls in GENERIC_ACTIONS) else action_cls


def factory_of(factory: Callable[[], Any], mode: str) -> Callable[[], Any]:
    """The factory. If its environments may have tools for only one mode, it passes the mode to them."""
    return FactoryInMode(factory).of(mode) if has_tools(factory) else factory


def set_mode(factory: Callable[[], Any], mode: str) -> None:
    """Sets another mode, before any environment is made."""
    if isinstance(factory, FactoryInMode):
        factory.of(mode)


VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Supported revisions of the MCP specification (those with a handshake)."""

_NOTIFICATION = "notifications/"
_CREATE = "openenv/session/create"


@dataclass(eq=False)
class MCPConversation:
    """The MCP requests of one client, over one connection or in one HTTP request.

    Attributes:
        server: The server of the sessions that are used.
        principal: The client that asks.
        shared: The session of requests that name none; None before one is opened.
        keeps: Whether an opened session is kept for the next requests. Otherwise each tool call that names no session
            gets a new environment.
        standard: Whether the client follows the MCP specification, in which a failed tool returns a result.
        opened: The sessions that it has opened; the client may not know their ids yet.
    """

    server: EnvironmentServer
    principal: Principal
    shared: SharedSession | None = None
    keeps: bool = False
    standard: bool = False
    opened: list[SharedSession] = field(default_factory=list)

    async def answer(self, value: Any) -> Fields | None:
        """The reply to one message; None for a notification, and for a reply of the client."""
        if isinstance(value, dict) and "method" not in value and ("result" in value or "error" in value):
            return None
        request_id = None
        try:
            request = read_one(value)
            request_id = request.id
            if not request.expects and (self.standard or request.method.startswith(_NOTIFICATION)):
                return None
            method = _METHODS.get(request.method)
            if method is None:
                raise _method_not_found(request, f"known methods: {', '.join(_METHODS)}")
            return result_reply(request_id, await method(self, request))
        except RpcError as fault:
            return error_reply(request_id, fault)
        except OpenEnvError as error:
            return error_reply(request_id, jsonrpc_fault(error))

    def end(self) -> None:
        """Ends the session that was opened and kept."""
        shared, self.shared = self.shared, None
        if shared is not None:
            shared.depart("its connection has ended")

    def give_up(self) -> None:
        """Ends the sessions of a client that disconnected before the answer, since it does not know their ids."""
        for shared in self.opened:
            shared.depart("its client disconnected while it was opened")

    async def initialize(self, request: RpcRequest) -> Fields:
        """The handshake of the MCP specification: opens a session and resets it."""
        self._check_tools()
        asked = request.params.get("protocolVersion")
        if self.shared is None:
            self.shared = await self._open(begins=True)
        self.standard = True
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self.server.env_name, "version": __version__},
        }

    async def ping(self, request: RpcRequest) -> Fields:
        """Answers a ping."""
        return {}

    async def use_tools(self, request: RpcRequest) -> Any:
        """Lists tools, or calls one."""
        ask = read_call(request.method, request.params, self.standard)
        self._check_tools()
        session_id = request.params.get("session_id")
        if session_id is not None:
            return outcome_of(await self._call(self._find(session_id), ask))
        if self.shared is None and self.keeps:
            self.shared = await self._open(self.server.authenticator.production)
        if self.shared is not None:
            return outcome_of(await self._call(self.shared, ask))
        principal = self.principal
        async with opened_session(self.server.manager, principal.holder, principal.peer) as session:
            if self.server.authenticator.production and ask.name is not None:
                await result_of(partial(session.reset, {}))
            return outcome_of(await result_of(partial(session.call, answer, ask)))

    async def create_session(self, request: RpcRequest) -> Fields:
        """Opens a session that later requests name by `params.session_id`."""
        if self.keeps and self.shared is not None:
            return {"session_id": self.shared.id}
        shared = await self._open(self.server.authenticator.production)
        if self.keeps:
            self.shared = shared
        return {"session_id": shared.id}

    async def close_session(self, request: RpcRequest) -> Fields:
        """Ends a session."""
        session_id = request.params.get("session_id")
        if session_id is None:
            raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "Invalid params - 'session_id' is required")
        shared = self._find(session_id)
        if shared is self.shared:
            self.shared = None
        await shared.close()
        return {"session_id": shared.id, "closed": True}

    async def _open(self, begins: bool) -> SharedSession:
        """Opens a session. `begins`: also resets it, since a client that may not reset needs an episode for tools."""
        shared = await self.server.shared_sessions.open(self.principal)
        if begins:
            try:
                await shared.call(lambda session, done: session.reset({}, done))
            except BaseException:
                shared.depart("its first reset failed")
                raise
        if not self.keeps:
            self.opened.append(shared)
        return shared

    async def _call(self, shared: SharedSession, ask: ToolRequest) -> Any:
        return await shared.call(lambda session, done: session.call(answer, ask, done))

    def _find(self, session_id: Any) -> SharedSession:
        try:
            return self.server.shared_sessions.find(str(session_id), self.principal)
        except UnknownSession as error:
            why = f"{error.message} (openenv/session/create, at /mcp)"
            raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, f"Unknown session_id: {session_id}: {why}") from error

    def _check_tools(self) -> None:
        if not has_tools(self.server.env_factory):
            raise RpcError(JsonRpcErrorCode.INTERNAL_ERROR, NO_TOOLS)


def jsonrpc_fault(error: OpenEnvError) -> RpcError:
    """One of our errors as a JSON-RPC error."""
    code = JsonRpcErrorCode.SERVER_ERROR if isinstance(error, CapacityError) else JsonRpcErrorCode.INTERNAL_ERROR
    facts = {key: value for key, value in error.facts().items() if key != "message"}
    return RpcError(code, error.message, {**error.data, **facts})


_METHODS: dict[str, Callable[[MCPConversation, RpcRequest], Awaitable[Any]]] = {
    "initialize": MCPConversation.initialize,
    "ping": MCPConversation.ping,
    McpMethod.TOOLS_LIST: MCPConversation.use_tools,
    McpMethod.TOOLS_CALL: MCPConversation.use_tools,
    _CREATE: MCPConversation.create_session,
    "openenv/session/close": MCPConversation.close_session,
}


def _method_not_found(request: RpcRequest, there: str) -> RpcError:
    return RpcError(JsonRpcErrorCode.METHOD_NOT_FOUND, f"Method not found: {request.method}; {there}")


_TOOLS = (McpMethod.TOOLS_LIST, McpMethod.TOOLS_CALL)
_OTHERS = ("ping", _CREATE)


def handle_mcp_frame(session: Session, data: dict[str, Any], done: Done) -> None:
    """Answers one request; `done` gets the fields of the reply, and never an error."""
    request_id = None
    try:
        request = read_one(data)
        request_id = request.id
        if request.method in _OTHERS:  # methods that need no environment
            done(result_reply(request_id, {"session_id": session.id} if request.method == _CREATE else {}), None)
            return
        if request.method not in _TOOLS:
            there = f"frames of /ws support {', '.join((*_TOOLS, *_OTHERS))}, and /mcp supports more"
            raise _method_not_found(request, there)
        call = read_call(request.method, request.params, standard=False)
    except RpcError as fault:
        done(error_reply(request_id, fault), None)
        return

    def answered(result: Any, error: BaseException | None) -> None:
        try:
            if error is not None:
                assert isinstance(error, OpenEnvError)  # a session translates all others
                raise jsonrpc_fault(error)
            reply = result_reply(request_id, outcome_of(result))
        except RpcError as fault:
            reply = error_reply(request_id, fault)
        done(reply, None)

    session.call(answer, call, answered)


def call_mcp_method(session: Session, method: str, params: Fields, done: Done) -> None:
    """Lists the tools or calls one; `done` gets `{"result": ...}` or `{"error": ...}`, or an exception."""
    try:
        call = read_call(method, params, standard=False)
    except RpcError as fault:
        error = {"code": fault.code, "message": fault.message, "data": fault.data}
        done({"error": error}, None)
    else:
        session.call(answer, call, done)
