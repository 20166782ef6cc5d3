from __future__ import annotations

from fastmcp import FastMCP

from openenv.mcp.library import get_server_tools


def server() -> FastMCP:
    server = FastMCP("shop")

    @server.tool
    def price(item: str) -> float:
        """What an item costs."""
        return 1.0

    server.tool(lambda: 2, name="two")
    return server


def test_the_tools_of_a_server_by_name():
    tools = get_server_tools(server())
    assert sorted(tools) == ["price", "two"]
    assert tools["price"].description == "What an item costs."


async def test_the_tools_of_a_server_beside_a_running_loop():
    assert sorted(get_server_tools(server())) == ["price", "two"]


def test_what_is_no_server_has_no_tools():
    assert get_server_tools(object()) == {}
