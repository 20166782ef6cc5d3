"""Tool calls as data: actions, observations, results, errors, and the JSON-RPC messages of `/mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_serializer

from ..protocol.errors import KINDS
from ..protocol.forms import read_action, read_form
from ..protocol.jsonrpc import JsonRpcErrorCode, RpcError
from ..types import Action, BaseMessage, Observation

RESERVED_TOOL_NAMES = frozenset({"reset", "step", "state", "close"})
"""Names that no tool may have: they drive an environment, and are not actions of an agent."""

MCP_TOOL_CALL_TIMEOUT = 30.0
"""Seconds that a tool has, unless the call or the environment's class says otherwise."""


class Tool(BaseModel):
    """One tool, as a model sees it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str
    input_schema: dict[str, Any] = Field(description="JSON Schema of the arguments")


class ToolErrorType(StrEnum):
    """Why a tool call has no result."""

    EXECUTION_ERROR = "execution_error"
    """The tool itself raised."""
    INVALID_ARGS = "invalid_args"
    """It does not take these arguments."""
    TRANSPORT_ERROR = "transport_error"
    """The connection to it failed."""
    TOOL_NOT_FOUND = "tool_not_found"
    """There is no such tool."""
    TIMEOUT = "timeout"
    """It did not end in time."""


class ToolError(BaseModel):
    """Why a tool call has no result: data for the model, which may try something else."""

    model_config = ConfigDict(extra="forbid")

    error_type: ToolErrorType
    message: str


class ListToolsAction(Action):
    """Asks for the tools that there are."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Calls one tool."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ListToolsObservation(Observation):
    """The tools that there are."""

    tools: list[Tool]


class CallToolObservation(Observation):
    """The result or the fault of a tool.

    Attributes:
        tool_name: The tool.
        result: `data` is the returned value in the form of JSON; `content` is for a model. In the
            process of the environment a `McpToolResult`, and elsewhere a dict of the same fields.
        error: None where there is a result.
    """

    tool_name: str
    result: Any = None
    error: ToolError | None = None


class McpMethod(StrEnum):
    """Methods of `/mcp` that use tools."""

    TOOLS_LIST = "tools/list"
    TOOLS_CALL = "tools/call"


DIRECT_CALL = {"mcp": McpMethod.TOOLS_CALL.value}
"""`step_arguments` in the record of a tool call that is not a step."""


def action_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool as an action."""
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


def deserialize_action(action_data: Mapping[str, Any], action_cls: type[Action]) -> Action:
    """`read_action`; if the class does not tell tool actions apart, `type` chooses theirs."""
    return read_action(action_data, _class_of(action_data, action_cls))


def deserialize_action_with_preprocessing(action_data: Mapping[str, Any], action_cls: type[Action]) -> Action:
    """`read_form`; if the class does not tell tool actions apart, `type` chooses theirs."""
    return read_form(action_data, _class_of(action_data, action_cls))


def _class_of(values: Mapping[str, Any], cls: type[Action]) -> type[Action]:
    kind = values.get("type")
    if kind not in {"list_tools", "call_tool"} or cls not in (Action, CallToolAction, ListToolsAction):
        return cls
    return CallToolAction if kind == "call_tool" else ListToolsAction


def observation_of(name: str, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The `result` or `error` of a call as an observation."""
    return {"tool_name": name, "result": reply.get("result"), "error": reply.get("error")}


class JsonRpcError(BaseModel):
    """Why a request failed."""

    model_config = ConfigDict(extra="forbid")

    code: int
    message: str
    data: Any | None = None

    @classmethod
    def from_code(cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None) -> Self:
        """An error; without a message, with the text of its code."""
        return cls(code=code.value, message=message or code.name.replace("_", " ").capitalize(), data=data)


class JsonRpcRequest(BaseModel):
    """A request of JSON-RPC 2.0."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class JsonRpcResponse(BaseModel):
    """The response to a request: either a result or an error."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"] = "2.0"
    result: Any | None = None
    error: JsonRpcError | None = None
    id: str | int | None = None

    @model_serializer
    def _fields(self) -> dict[str, Any]:
        answer = {"result": self.result} if self.error is None else {"error": self.error.model_dump()}
        return {"jsonrpc": self.jsonrpc, "id": self.id, **answer}

    @classmethod
    def success(cls, result: Any, request_id: str | int | None = None) -> Self:
        """The response to a request that succeeded."""
        return cls(result=result, id=request_id)

    @classmethod
    def error_response(
        cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None, request_id: str | int | None = None
    ) -> Self:
        """The response to a request that failed."""
        return cls(error=JsonRpcError.from_code(code, message, data), id=request_id)


class WSMCPMessage(BaseMessage):
    """A frame of `/ws` that carries a JSON-RPC request."""

    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]


class WSMCPResponse(BaseModel):
    """The frame that carries its response."""

    model_config = ConfigDict(extra="forbid")

    type: str = "mcp"
    data: dict[str, Any]


_LIST, _CALL, _OWN = KINDS

GENERIC_ACTIONS = (Action, CallToolAction, ListToolsAction)
"""Action classes without actions of their own: a server with one of them takes every tool action."""


def with_tools(action_type: Any) -> Any:
    """An action type extended by `list_tools` and `call_tool`."""
    own = CallToolAction if action_type in (CallToolAction, ListToolsAction) else action_type
    return Annotated[
        Annotated[ListToolsAction, Tag(_LIST)] | Annotated[CallToolAction, Tag(_CALL)] | Annotated[own, Tag(_OWN)],
        Discriminator(_kind),
    ]


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind == "call_tool":
        return _CALL
    return _LIST if kind == "list_tools" else _OWN


MOST_NAMES = 50
INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""Exceptions that end a call from outside. All others are failures of its tool."""


@dataclass(slots=True)
class McpToolResult:
    """The result of a tool.

    Attributes:
        content: Blocks of text, images and so on, as they are shown to a model.
        structured_content: The value as a JSON object; None if the tool returns none.
        meta: Additional facts.
        data: The value that the tool returned, as JSON; None if it returned only content.
        is_error: False: a tool that failed has a `ToolError` and no result.
    """

    content: list[Any]
    structured_content: dict[str, Any] | None
    meta: dict[str, Any] | None
    data: Any
    is_error: bool = False


class ToolFault(Exception):
    """Why a tool failed.

    Attributes:
        error: The same as data.
    """

    def __init__(self, error_type: ToolErrorType, message: str):
        super().__init__(message)
        self.error = ToolError(error_type=error_type, message=message)


def not_found_error(name: str, names: list[str]) -> ToolFault:
    """The tool does not exist; the message names the existing ones."""
    there = ", ".join(names[:MOST_NAMES]) or "none"
    return ToolFault(ToolErrorType.TOOL_NOT_FOUND, f"Unknown tool: {name!r}; there are: {there}")


def argument_error(name: str, error: BaseException, schema: Any = None) -> ToolFault:
    """The tool does not take these arguments; the message names them and the expected ones."""
    faults = str(error)
    if isinstance(error, ValidationError):
        places = ((".".join(map(str, each["loc"])), each["msg"]) for each in error.errors(include_url=False))
        faults = "; ".join(f"{place or 'arguments'}: {message}" for place, message in places)
    takes = ""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict):
        required = schema.get("required") or ()
        listed = [each if each in required else f"{each} (optional)" for each in properties]
        takes = f"; it takes {', '.join(listed) or 'none'}"
    return ToolFault(ToolErrorType.INVALID_ARGS, f"wrong arguments for tool {name!r}: {faults}{takes}")


def execution_error(name: str, error: BaseException) -> ToolFault:
    """The tool raised. The text is FastMCP's, since models are trained with it; without a text, the error's class."""
    said = message_of(error) or type(error).__name__
    fault = ToolFault(ToolErrorType.EXECUTION_ERROR, f"Error calling tool {name!r}: {said}")
    fault.__cause__ = error
    return fault


def fault_of(name: str, error: BaseException) -> ToolFault:
    """The fault for an exception that a tool or its call raised."""
    return error if isinstance(error, ToolFault) else execution_error(name, error)


def message_of(error: BaseException) -> str:
    """The text of an error; empty if the error's own `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - foreign code again
        return ""


def timeout_error(name: str, timeout_s: float) -> ToolFault:
    """It did not end in time."""
    still = "it may still be running; give it more time with timeout_s, or tool_timeout_s of the environment's class"
    return ToolFault(ToolErrorType.TIMEOUT, f"Tool {name!r} timed out after {timeout_s:g} seconds: {still}")


NO_TOOLS = "Environment does not support MCP: it has no tools, since it is not an MCPEnvironment"


def dump_block(block: Any) -> Any:
    """One block of content as JSON, by the MCP specification."""
    dump = getattr(block, "model_dump", None)
    return block if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


class ToolRequest(NamedTuple):
    """A call of one of the two methods.

    Attributes:
        name: Tool name; None lists the tools.
        arguments: For the tool.
        standard: Whether the client follows the MCP specification: a failed tool is then a result that says so, not
            an error.
    """

    name: str | None
    arguments: dict[str, Any]
    standard: bool

    @property
    def step_arguments(self) -> dict[str, str]:
        """Marks such a call, unlike a step, in a record."""
        return DIRECT_CALL

    def as_action(self) -> dict[str, Any] | None:
        """The action that calls the same tool, for a record of the session; None for a list of tools."""
        return None if self.name is None else action_of(self.name, self.arguments)

    def as_observation(self, answered: dict[str, Any]) -> dict[str, Any]:
        """The answer of the session, for its record."""
        return {**observation_of(str(self.name), answered), "reward": None, "done": False}

    def reply(self, outcome: McpToolResult | ToolFault) -> dict[str, Any]:
        """The session's answer: by the MCP specification, or else also in the form of `openenv` clients."""
        if isinstance(outcome, ToolFault):
            failure = outcome.error
            if self.standard:
                return {"result": {"content": [{"type": "text", "text": failure.message}], "isError": True}}
            return error_reply(failure.message, {"error_type": failure.error_type.value})
        wire: dict[str, Any] = {"content": [dump_block(block) for block in outcome.content]}
        if outcome.structured_content is not None:
            wire["structuredContent"] = outcome.structured_content
        wire["isError"] = False
        if not self.standard:
            wire |= {
                "structured_content": outcome.structured_content,
                "meta": outcome.meta,
                "data": outcome.data,
                "is_error": False,
            }
        elif outcome.meta:
            wire["_meta"] = outcome.meta
        return {"result": wire}


def read_call(method: str, params: dict[str, Any], standard: bool) -> ToolRequest:
    """The call in a request.

    Raises:
        Fault: Its params are invalid.
    """
    if method == McpMethod.TOOLS_LIST:
        return ToolRequest(None, {}, standard)
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str):
        raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "Missing 'name' in params: the tool to call")
    if arguments is not None and not isinstance(arguments, dict):
        raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "'arguments' in params must be an object")
    return ToolRequest(name, arguments or {}, standard)


def listing_reply(tools: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The answer of a session to a request for its tools."""
    return {"result": {"tools": list(tools)}}


def error_reply(message: str, data: Any = None) -> dict[str, Any]:
    """The answer of a session without a result."""
    return {"error": {"code": int(JsonRpcErrorCode.INTERNAL_ERROR), "message": message, "data": data}}


def outcome_of(answered: Any) -> Any:
    """The result in an operation's answer.

    Raises:
        Fault: It is an error.
    """
    error = answered.get("error")
    if error is not None:
        raise RpcError(error["code"], error["message"], error["data"])
    return answered["result"]
