"""The client of the abacus: tools by name."""

from openenv.core.mcp_client import MCPToolClient


class AbacusEnv(MCPToolClient):
    """Has all it needs from its base: `list_tools`, `call_tool`, `reset`, `step`, `state`."""

    pass
