"""`openenv.mcp.types` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...mcp.types import (
        RESERVED_TOOL_NAMES,
        CallToolAction,
        CallToolObservation,
        JsonRpcError,
        JsonRpcRequest,
        JsonRpcResponse,
        ListToolsAction,
        ListToolsObservation,
        McpMethod,
        Tool,
        ToolError,
        ToolErrorType,
        WSMCPMessage,
        WSMCPResponse,
    )
    from ...protocol.jsonrpc import JsonRpcErrorCode
    from ...types import Action, BaseMessage, Observation

__all__ = [
    "RESERVED_TOOL_NAMES",
    "Action",
    "BaseMessage",
    "CallToolAction",
    "CallToolObservation",
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "ListToolsAction",
    "ListToolsObservation",
    "McpMethod",
    "Observation",
    "Tool",
    "ToolError",
    "ToolErrorType",
    "WSMCPMessage",
    "WSMCPResponse",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "RESERVED_TOOL_NAMES": "openenv.mcp.types",
        "Action": "openenv.types",
        "BaseMessage": "openenv.types",
        "CallToolAction": "openenv.mcp.types",
        "CallToolObservation": "openenv.mcp.types",
        "JsonRpcError": "openenv.mcp.types",
        "JsonRpcErrorCode": "openenv.protocol.jsonrpc",
        "JsonRpcRequest": "openenv.mcp.types",
        "JsonRpcResponse": "openenv.mcp.types",
        "ListToolsAction": "openenv.mcp.types",
        "ListToolsObservation": "openenv.mcp.types",
        "McpMethod": "openenv.mcp.types",
        "Observation": "openenv.types",
        "Tool": "openenv.mcp.types",
        "ToolError": "openenv.mcp.types",
        "ToolErrorType": "openenv.mcp.types",
        "WSMCPMessage": "openenv.mcp.types",
        "WSMCPResponse": "openenv.mcp.types",
    },
)
