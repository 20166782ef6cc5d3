"""The actions and observations of tools are those of OpenEnv."""

from openenv.mcp.types import CallToolAction, CallToolObservation, ListToolsAction, ListToolsObservation

__all__ = ["CallToolAction", "CallToolObservation", "ListToolsAction", "ListToolsObservation"]
