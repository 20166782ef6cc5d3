"""`openenv.mcp.environment` under its older name."""

from __future__ import annotations

from .._homes import *

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

__getattr__, __dir__ = take(__name__, __all__)
