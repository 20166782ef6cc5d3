"""JSON-RPC in the `mcp` frames of `/ws`: tools of the session that the connection has."""

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

__all__ = ["ask"]

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
