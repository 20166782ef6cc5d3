"""`openenv.client.mcp_client` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from ..client import EnvClient
    from ..client.mcp_client import GenericMCPObservation, MCPClientBase, MCPToolClient
    from ..mcp.types import (
        CallToolAction,
        CallToolObservation,
        ListToolsAction,
        ListToolsObservation,
        Tool,
        ToolError,
    )
    from ..types import Observation, State, StepResult

__all__ = [
    "CallToolAction",
    "CallToolObservation",
    "EnvClient",
    "GenericMCPObservation",
    "ListToolsAction",
    "ListToolsObservation",
    "MCPClientBase",
    "MCPToolClient",
    "Observation",
    "State",
    "StepResult",
    "Tool",
    "ToolError",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CallToolAction": "openenv.mcp.types",
        "CallToolObservation": "openenv.mcp.types",
        "EnvClient": "openenv.client",
        "GenericMCPObservation": "openenv.client.mcp_client",
        "ListToolsAction": "openenv.mcp.types",
        "ListToolsObservation": "openenv.mcp.types",
        "MCPClientBase": "openenv.client.mcp_client",
        "MCPToolClient": "openenv.client.mcp_client",
        "Observation": "openenv.types",
        "State": "openenv.types",
        "StepResult": "openenv.types",
        "Tool": "openenv.mcp.types",
        "ToolError": "openenv.mcp.types",
    },
)
