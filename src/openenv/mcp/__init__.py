"""Environments with tool calls (MCP) as actions. Nothing here loads `fastmcp` or `mcp`: an environment does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .environment import MCPEnvironment
    from .types import (
        CallToolAction,
        CallToolObservation,
        ListToolsAction,
        ListToolsObservation,
        Tool,
        ToolError,
        ToolErrorType,
    )

__all__ = [
    "CallToolAction",
    "CallToolObservation",
    "ListToolsAction",
    "ListToolsObservation",
    "MCPEnvironment",
    "Tool",
    "ToolError",
    "ToolErrorType",
]

# A type checker sees the imports above.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {name: "openenv.mcp.environment" if name == "MCPEnvironment" else "openenv.mcp.types" for name in __all__},
    )
