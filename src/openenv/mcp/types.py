"""Tool calls as data: actions, observations, errors, and the JSON-RPC messages of `/mcp`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_serializer

from ..protocol.errors import KINDS
from ..protocol.jsonrpc import JsonRpcErrorCode
from ..types import Action, BaseMessage, Observation

RESERVED_TOOL_NAMES = frozenset({"reset", "step", "state", "close"})
"""No tool may be called so: they are what drives an environment, and not what an agent does in it."""

MCP_TOOL_CALL_TIMEOUT = 30.0
"""Seconds that a tool has, unless the call or the environment's class says otherwise."""


class Tool(BaseModel):
    """One tool, as a model is told of it."""

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
    """It gave no answer in its time."""


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
    """What a tool gave, or why it gave nothing.

    Attributes:
        tool_name: The tool.
        result: `data` is the value that the tool returned, as JSON has it; `content` what is shown to a model. In the
            process of the environment an `openenv.mcp.result.ToolResult`, and elsewhere a dict of the same fields.
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
"""What a record has in `step_arguments` of a tool that was called, and is no step."""


def action_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool as an action."""
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


def observation_of(name: str, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The `result` or `error` of a call as an observation."""
    return {"tool_name": name, "result": reply.get("result"), "error": reply.get("error")}


class JsonRpcError(BaseModel):
    """Why a request was not done."""

    model_config = ConfigDict(extra="forbid")

    code: int
    message: str
    data: Any | None = None

    @classmethod
    def from_code(cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None) -> Self:
        """An error; without a message, with what the code itself says."""
        return cls(code=code.value, message=message or code.name.replace("_", " ").capitalize(), data=data)


class JsonRpcRequest(BaseModel):
    """A request of JSON-RPC 2.0."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class JsonRpcResponse(BaseModel):
    """Its answer: a result or an error, and never both."""

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
        """The answer to a request that was done."""
        return cls(result=result, id=request_id)

    @classmethod
    def error_response(
        cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None, request_id: str | int | None = None
    ) -> Self:
        """The answer to one that was not."""
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
"""Action classes that name no actions of their own: a server that is given one of them takes every tool action."""


def with_tools(action_type: Any) -> Any:
    """An action type that takes `list_tools` and `call_tool` too; what else it takes stays as it was."""
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
