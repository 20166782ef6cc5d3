"""The client of the logbook."""

from openenv.core.mcp_client import MCPToolClient


class LogbookEnv(MCPToolClient):
    """Calls tools by name."""
