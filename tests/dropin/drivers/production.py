"""Drives a server of the abacus that is in production: tools, and no control."""

from __future__ import annotations

from abacus_env import AbacusEnv
from checks import ask, check, fails, http, main, websocket

TOOLS = {"add", "divide", "push", "beads_as_text", "settle"}


@check
def control_is_not_there_over_http(url: str) -> None:
    assert http("POST", url + "/reset", {}).status == 404
    assert http("POST", url + "/step", {"action": {"type": "list_tools"}}).status == 404
    assert http("GET", url + "/state").status == 404
    paths = http("GET", url + "/openapi.json").json["paths"]
    assert not {"/reset", "/step", "/state"} & set(paths)
    assert "/mcp" in paths


@check
def health_and_schema_stay(url: str) -> None:
    assert http("GET", url + "/health").json["status"] == "healthy"
    assert http("GET", url + "/schema").status == 200
    assert http("GET", url + "/metadata").status == 200


@check
def a_client_without_keys_drives_its_own_episode_over_a_websocket(url: str) -> None:
    with websocket(url) as socket:
        assert ask(socket, {"type": "reset"})["type"] == "observation"
        assert ask(socket, {"type": "state"})["type"] == "state"


@check
def tools_of_production_are_listed_and_called_over_json_rpc(url: str) -> None:
    listed = http("POST", url + "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json
    assert {tool["name"] for tool in listed["result"]["tools"]} == TOOLS
    settle = {"name": "settle", "arguments": {"amount": 2}}
    called = http("POST", url + "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": settle}).json
    assert called["result"]["content"][0]["text"] == "settled 2.0"
    rehearse = {"name": "rehearse", "arguments": {"amount": 2}}
    refused = http("POST", url + "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": rehearse}).json
    assert "error" in refused or refused["result"].get("isError") or refused["result"].get("is_error")


@check
def a_client_in_production_mode_needs_no_control(url: str) -> None:
    with AbacusEnv(base_url=url, mode="production").sync() as env:
        assert {tool.name for tool in env.list_tools()} == TOOLS
        assert env.call_tool("settle", amount=3) == "settled 3.0"
        env.call_tool("push", bead=1)
        assert env.call_tool("push", bead=1) == {"beads": [1, 1], "sum": 2}
        with fails("rehearse"):
            env.call_tool("rehearse", amount=3)


if __name__ == "__main__":
    main()
