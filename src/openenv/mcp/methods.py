"""`tools/list` and `tools/call` as operations on an environment, wherever it runs: data in, data out."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple

from ..protocol.jsonrpc import Fault, JsonRpcErrorCode
from .environment import MCPEnvironment, is_asynchronous, mode_of, toolbox_of
from .library import Listed, dump_block
from .result import NOT_OURS, ToolFault, ToolResult, failed, wire_of
from .toolbox import Toolbox
from .types import DIRECT_CALL, McpMethod, action_of, observation_of

__all__ = ["NO_TOOLS", "Ask", "answer", "outcome_of", "read_call"]

NO_TOOLS = "Environment does not support MCP: it is no MCPEnvironment, and has no tools"


class Ask(NamedTuple):
    """A call of one of the two methods.

    Attributes:
        name: Of the tool; None: which there are.
        arguments: For the tool.
        standard: Whether a client of the MCP specification asks: a tool that fails is then a result that says so, and
            no error.
    """

    name: str | None
    arguments: dict[str, Any]
    standard: bool

    @property
    def step_arguments(self) -> dict[str, str]:
        """What tells such a call from a step in a record."""
        return DIRECT_CALL

    def as_action(self) -> dict[str, Any] | None:
        """The action that calls the same tool, for a record of the session; None for a list of tools."""
        return None if self.name is None else action_of(self.name, self.arguments)

    def as_observation(self, answered: dict[str, Any]) -> dict[str, Any]:
        """What the session answered, for a record of it."""
        return {**observation_of(str(self.name), answered), "reward": None, "done": False}


def read_call(method: str, params: dict[str, Any], standard: bool) -> Ask:
    """A call out of a request.

    Raises:
        Fault: Its params are not what they should be.
    """
    if method == McpMethod.TOOLS_LIST:
        return Ask(None, {}, standard)
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str):
        raise Fault(JsonRpcErrorCode.INVALID_PARAMS, "Missing 'name' in params: the tool to call")
    if arguments is not None and not isinstance(arguments, dict):
        raise Fault(JsonRpcErrorCode.INVALID_PARAMS, "'arguments' in params must be an object")
    return Ask(name, arguments or {}, standard)


def answer(environment: Any, ask: Ask) -> dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]:
    """The operation: `{"result": ...}`, or `{"error": {code, message, data}}`.

    What an asynchronous environment gives is to be awaited, as its steps are.
    """
    toolbox = toolbox_of(environment)
    if not isinstance(environment, MCPEnvironment) or toolbox is None:
        return _error(JsonRpcErrorCode.INTERNAL_ERROR, NO_TOOLS, None)
    if is_asynchronous(type(environment)):
        return _answer_async(environment, toolbox, ask)
    mode = mode_of(environment)
    if ask.name is None:
        return _listing(toolbox.tools(mode))
    try:
        result = toolbox.call(ask.name, ask.arguments, environment.tool_timeout_s, mode)
    except NOT_OURS:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, SystemExit too, it is an answer
        return _refused(ask, error)
    return _answered(ask, result)


def outcome_of(answered: Any) -> Any:
    """The result in what the operation gave.

    Raises:
        Fault: It gave an error.
    """
    error = answered.get("error")
    if error is not None:
        raise Fault(error["code"], error["message"], error["data"])
    return answered["result"]


async def _answer_async(environment: MCPEnvironment, toolbox: Toolbox, ask: Ask) -> dict[str, Any]:
    mode = mode_of(environment)
    if ask.name is None:
        return _listing(await toolbox.tools_async(mode))
    try:
        result = await toolbox.call_async(ask.name, ask.arguments, environment.tool_timeout_s, mode)
    except NOT_OURS:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return _refused(ask, error)
    return _answered(ask, result)


def _listing(tools: list[Listed]) -> dict[str, Any]:
    return {"result": {"tools": [listed.wire for listed in tools]}}


def _answered(ask: Ask, result: ToolResult) -> dict[str, Any]:
    return {"result": wire_of(result, dump_block, ask.standard)}


def _refused(ask: Ask, error: BaseException) -> dict[str, Any]:
    fault = error if isinstance(error, ToolFault) else failed(str(ask.name), error)
    told = fault.error
    if ask.standard:
        return {"result": {"content": [{"type": "text", "text": told.message}], "isError": True}}
    return _error(JsonRpcErrorCode.INTERNAL_ERROR, told.message, {"error_type": told.error_type.value})


def _error(code: int, message: str, data: Any) -> dict[str, Any]:
    return {"error": {"code": int(code), "message": message, "data": data}}
