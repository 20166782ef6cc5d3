"""The client."""

from __future__ import annotations

from openenv.client.mcp_client import MCPToolClient


class MazeEnv(MCPToolClient):
    """Plays with the tools of the maze."""
