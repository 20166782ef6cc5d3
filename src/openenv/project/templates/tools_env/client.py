"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client.mcp_client import MCPToolClient

__all__ = ["MyEnv"]


class MyEnv(MCPToolClient):
    """Does one errand at a time.

    Example::

        with MyEnv(base_url="http://localhost:8000").sync() as env:
            print(env.reset(seed=7).observation.task)
            print([tool.name for tool in env.list_tools()])
            print(env.call_tool("take", item="tea", count=2))

    `call_tool` returns the result of the tool. It is not a step: it has no reward and is not counted.
    `step(CallToolAction(...))` calls the tool as a step of the episode. In asynchronous code these are awaited.
    `MyEnv(app=app)`, with the app of `server/app.py`, needs no server.
    """
