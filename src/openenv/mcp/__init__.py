"""Environments whose actions are tool calls (MCP). Nothing here loads `fastmcp` or `mcp`: an environment does."""

from ..lazy import lazy

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

_TYPES = "openenv.mcp.types"
__getattr__, __dir__ = lazy(
    __name__,
    {name: "openenv.mcp.environment" if name == "MCPEnvironment" else _TYPES for name in __all__},
)
