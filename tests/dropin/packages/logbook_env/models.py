"""Actions and observations of tools, as OpenEnv has them."""

from openenv.mcp.types import CallToolAction, CallToolObservation, ListToolsAction

__all__ = ["CallToolAction", "CallToolObservation", "ListToolsAction"]
