"""`openenv.client.mcp_client` under its older name."""

from __future__ import annotations

from ._homes import *

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

__getattr__, __dir__ = take(__name__, __all__)
