"""Tools of the session that a connection has: JSON-RPC in v1's `mcp` frames, and v2's `mcp` requests."""

from __future__ import annotations

from typing import Any

from ..errors import OpenEnvError
from ..execution import Done
from ..mcp.methods import answer, outcome_of, read_call
from ..mcp.types import McpMethod
from ..protocol.jsonrpc import (
    Fault,
    Fields,
    JsonRpcErrorCode,
    Request,
    error_reply,
    read_one,
    result_reply,
)
from ..sessions import Session
from .mcp_methods import fault_of

__all__ = ["ask", "ask_tools"]

_TOOLS = (McpMethod.TOOLS_LIST, McpMethod.TOOLS_CALL)


def ask(session: Session, data: dict[str, Any], done: Done) -> None:
    """Answers one request; `done` gets the fields of the reply, and never an error."""
    request_id = None
    try:
        request = read_one(data)
        request_id = request.id
        if request.method not in _TOOLS:
            done(result_reply(request_id, _beside(session, request)), None)
            return
        call = read_call(request.method, request.params, standard=False)
    except Fault as fault:
        done(error_reply(request_id, fault), None)
        return

    def answered(result: Any, error: BaseException | None) -> None:
        done(_reply(request_id, result, error), None)

    session.call(answer, call, answered)


def ask_tools(session: Session, method: str, params: Fields, done: Done) -> None:
    """Lists the tools or calls one; `done` gets `{"result": ...}` or `{"error": ...}`, or why there is neither."""
    try:
        call = read_call(method, params, standard=False)
    except Fault as fault:
        error = {"code": fault.code, "message": fault.message, "data": fault.data}
        done({"error": error}, None)
    else:
        session.call(answer, call, done)


def _reply(request_id: Any, result: Any, error: BaseException | None) -> Fields:
    try:
        if error is not None:
            assert isinstance(error, OpenEnvError)  # a session translates all others
            raise fault_of(error)
        return result_reply(request_id, outcome_of(result))
    except Fault as fault:
        return error_reply(request_id, fault)


def _beside(session: Session, request: Request) -> Fields:
    """What is no matter of the environment."""
    if request.method == "openenv/session/create":
        return {"session_id": session.id}
    if request.method == "ping":
        return {}
    there = ", ".join((*_TOOLS, "ping", "openenv/session/create"))
    message = f"Method not found: {request.method}; in frames of /ws there are {there}, and at /mcp further ones"
    raise Fault(JsonRpcErrorCode.METHOD_NOT_FOUND, message)
