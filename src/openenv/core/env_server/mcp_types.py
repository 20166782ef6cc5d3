"""`openenv.mcp.types` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from ...mcp.types import (
        RESERVED_TOOL_NAMES,
        CallToolAction,
        CallToolObservation,
        JsonRpcError,
        JsonRpcErrorCode,
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

__all__ = [
    "RESERVED_TOOL_NAMES",
    "CallToolAction",
    "CallToolObservation",
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "ListToolsAction",
    "ListToolsObservation",
    "McpMethod",
    "Tool",
    "ToolError",
    "ToolErrorType",
    "WSMCPMessage",
    "WSMCPResponse",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.mcp.types"))
