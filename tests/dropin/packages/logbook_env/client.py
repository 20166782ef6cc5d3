"""The client of the logbook."""

from openenv.client.mcp_client import MCPToolClient


class LogbookEnv(MCPToolClient):
    """Calls tools by name."""
