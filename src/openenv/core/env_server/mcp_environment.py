"""`openenv.mcp.environment` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ..._asyncio import run_async_safely
    from ...environment import Environment
    from ...mcp.environment import MCPEnvironment
    from ...mcp.library import get_server_tools
    from ...mcp.toolbox import VALID_MODES
    from ...mcp.types import (
        MCP_TOOL_CALL_TIMEOUT,
        RESERVED_TOOL_NAMES,
        CallToolAction,
        CallToolObservation,
        ListToolsAction,
        ListToolsObservation,
        Tool,
        ToolError,
        ToolErrorType,
    )
    from ...types import Action, Observation

__all__ = [
    "MCP_TOOL_CALL_TIMEOUT",
    "RESERVED_TOOL_NAMES",
    "VALID_MODES",
    "Action",
    "CallToolAction",
    "CallToolObservation",
    "Environment",
    "ListToolsAction",
    "ListToolsObservation",
    "MCPEnvironment",
    "Observation",
    "Tool",
    "ToolError",
    "ToolErrorType",
    "get_server_tools",
    "run_async_safely",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "MCP_TOOL_CALL_TIMEOUT": "openenv.mcp.types",
        "RESERVED_TOOL_NAMES": "openenv.mcp.types",
        "VALID_MODES": "openenv.mcp.toolbox",
        "Action": "openenv.types",
        "CallToolAction": "openenv.mcp.types",
        "CallToolObservation": "openenv.mcp.types",
        "Environment": "openenv.environment",
        "ListToolsAction": "openenv.mcp.types",
        "ListToolsObservation": "openenv.mcp.types",
        "MCPEnvironment": "openenv.mcp.environment",
        "Observation": "openenv.types",
        "Tool": "openenv.mcp.types",
        "ToolError": "openenv.mcp.types",
        "ToolErrorType": "openenv.mcp.types",
        "get_server_tools": "openenv.mcp.library",
        "run_async_safely": "openenv._asyncio",
    },
)
