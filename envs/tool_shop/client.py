"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client.mcp_client import MCPToolClient

__all__ = ["ToolShopEnv"]


class ToolShopEnv(MCPToolClient):
    """Client of the shop, for one episode at a time.

    Example::

        with ToolShopEnv(base_url="http://localhost:8000").sync() as env:
            print(env.reset(split="train", index=7).observation.task)
            print([tool.name for tool in env.list_tools()])
            print(env.call_tool("search_products", query="tea"))

    `call_tool` returns the result of the tool. It is not a step: it has no reward and does not count.
    `step(CallToolAction(...))` calls the tool as a step of the episode. Asynchronous code awaits the same calls.
    `ToolShopEnv(app=app)`, with the app of `server/app.py`, needs no server.
    """
