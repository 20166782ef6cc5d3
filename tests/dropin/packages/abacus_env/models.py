"""The actions and observations of tools are those of OpenEnv."""

from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
)

__all__ = ["CallToolAction", "CallToolObservation", "ListToolsAction", "ListToolsObservation"]
