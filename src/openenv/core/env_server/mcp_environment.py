"""`openenv.mcp.environment` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from ...mcp.environment import MCPEnvironment
    from ...mcp.types import MCP_TOOL_CALL_TIMEOUT, RESERVED_TOOL_NAMES

__all__ = [
    "MCP_TOOL_CALL_TIMEOUT",
    "RESERVED_TOOL_NAMES",
    "MCPEnvironment",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "MCP_TOOL_CALL_TIMEOUT": "openenv.mcp.types",
        "RESERVED_TOOL_NAMES": "openenv.mcp.types",
        "MCPEnvironment": "openenv.mcp.environment",
    },
)
