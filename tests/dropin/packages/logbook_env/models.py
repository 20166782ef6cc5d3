"""Actions and observations of tools, as OpenEnv has them."""

from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation, ListToolsAction

__all__ = ["CallToolAction", "CallToolObservation", "ListToolsAction"]
