"""Drives a server of the abacus: MCP tools over every transport."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from abacus_env import AbacusEnv, CallToolAction, ListToolsAction
from checks import ask, check, check_ours, fails, http, main, websocket

COMMON = {"add", "divide", "push", "beads_as_text"}


def _rpc(url: str, method: str, params: Any = None, **headers: str) -> Any:
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {} if params is None else params}
    answer = http("POST", url + "/mcp", request, **headers)
    assert answer.status == 200, answer
    assert answer.json["id"] == 7
    return answer.json


def _call(name: str, **arguments: Any) -> CallToolAction:
    return CallToolAction(tool_name=name, arguments=arguments)


@check
def health_says_healthy(url: str) -> None:
    answer = http("GET", url + "/health")
    assert answer.status == 200
    assert answer.json["status"] == "healthy"


@check
def the_environment_is_listed_by_its_name(url: str) -> None:
    assert http("GET", url + "/list_environments").json == ["abacus_env"]


@check
def the_schema_has_the_fields_of_a_tool_call(url: str) -> None:
    schema = http("GET", url + "/schema").json
    assert {"tool_name", "arguments"} <= set(schema["action"]["properties"])
    assert {"tool_name", "result", "error"} <= set(schema["observation"]["properties"])
    assert "episode_id" in schema["state"]["properties"]


@check
def reset_returns_the_environments_observation(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        result = env.reset(seed=5)
        assert result.reward == 0.0
        assert result.done is False
        assert result.observation.metadata == {"status": "ready", "seed": 5}


@check
def tools_are_listed_with_name_description_and_schema(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        env.reset()
        tools = {tool.name: tool for tool in env.list_tools()}
        assert set(tools) >= COMMON
        assert tools["add"].description.startswith("Add two numbers")
        assert set(tools["add"].input_schema["properties"]) == {"a", "b"}
        assert tools["add"].input_schema["required"] == ["a", "b"]


@check
def a_tool_returns_its_value(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        env.reset()
        assert env.call_tool("add", a=2, b=3) == 5.0
        assert env.call_tool("push", bead=4) == {"beads": [4], "sum": 4}
        assert env.call_tool("beads_as_text") == "4"


@check
def tools_can_be_called_without_a_reset(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        assert env.call_tool("add", a=1, b=1) == 2.0


@check
def a_tool_that_fails_raises_with_its_message(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        with fails("divide", "division by zero"):
            env.call_tool("divide", a=1, b=0)
        assert env.call_tool("divide", a=1, b=2) == 0.5


@check
def an_unknown_tool_raises_and_names_it(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        with fails("multiply"):
            env.call_tool("multiply", a=1, b=0)


@check
def wrong_arguments_raise_and_name_the_argument(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        with fails("add", "b"):
            env.call_tool("add", a=1)


@check
def a_step_gives_tool_errors_as_data(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        env.reset()
        fine = env.step(_call("add", a=2, b=3)).observation
        assert fine.tool_name == "add"
        assert fine.error is None
        assert fine.result["data"] == 5.0
        assert fine.result["structured_content"] == {"result": 5.0}
        assert fine.result["is_error"] is False
        assert fine.result["content"][0]["text"] == "5.0"
        for action, expected in [
            (_call("divide", a=1, b=0), "execution_error"),
            (_call("multiply", a=1, b=0), "tool_not_found"),
            (_call("add", a=1), "invalid_args"),
        ]:
            observation = env.step(action).observation
            assert observation.error is not None, action
            assert observation.error.error_type.value == expected, (action, observation)
            assert observation.error.message


@check
def a_step_lists_the_tools(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        env.reset()
        assert {tool.name for tool in env.step(ListToolsAction()).observation.tools} >= COMMON


@check
def the_state_counts_the_steps(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        env.reset(episode_id="mine")
        env.step(_call("add", a=2, b=3))
        env.step(_call("divide", a=2, b=0))
        state = env.state()
        assert state.episode_id == "mine"
        assert state.step_count == 2


@check
def has_tool_and_get_tool_find_tools(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        assert env.has_tool("add")
        assert not env.has_tool("multiply")
        assert env.get_tool("push").name == "push"
        assert env.get_tool("multiply") is None


@check
async def the_same_works_asynchronously(url: str) -> None:
    async with AbacusEnv(base_url=url) as env:
        await env.reset()
        assert {tool.name for tool in await env.list_tools()} >= COMMON
        assert await env.call_tool("push", bead=1) == {"beads": [1], "sum": 1}
        with fails("division by zero"):
            await env.call_tool("divide", a=1, b=0)
        assert (await env.step(_call("push", bead=2))).observation.result["data"]["sum"] == 3
        assert (await env.state()).step_count >= 1


@check
async def sessions_keep_their_beads_apart(url: str) -> None:
    async def play(number: int) -> None:
        async with AbacusEnv(base_url=url) as env:
            await env.reset()
            for _ in range(5):
                last = await env.call_tool("push", bead=number)
            assert last == {"beads": [number] * 5, "sum": 5 * number}

    await asyncio.gather(*(play(number) for number in range(12)))


@check
def threads_use_clients_of_their_own(url: str) -> None:

    def play(number: int) -> int:
        with AbacusEnv(base_url=url).sync() as env:
            env.reset()
            env.call_tool("push", bead=number)
            return env.call_tool("push", bead=1)["sum"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(8))) == [number + 1 for number in range(8)]


@check
def http_resets_and_steps_without_a_session(url: str) -> None:
    answer = http("POST", url + "/reset", {"seed": 3}).json
    assert answer["observation"]["metadata"] == {"status": "ready", "seed": 3}
    action = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}
    answer = http("POST", url + "/step", {"action": action}).json
    assert answer["observation"]["result"]["data"] == 3.0
    listed = http("POST", url + "/step", {"action": {"type": "list_tools"}}).json
    assert {tool["name"] for tool in listed["observation"]["tools"]} >= COMMON


@check
def an_action_that_is_none_is_422(url: str) -> None:
    answer = http("POST", url + "/step", {"action": {"zz": 1}})
    assert answer.status == 422
    assert isinstance(answer.json["detail"], list)


@check
def json_rpc_lists_and_calls_tools(url: str) -> None:
    listed = _rpc(url, "tools/list")["result"]["tools"]
    assert {tool["name"] for tool in listed} >= COMMON
    assert all("inputSchema" in tool for tool in listed)
    called = _rpc(url, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    assert called["result"]["content"][0]["text"] == "3.0"


@check
def json_rpc_errors_have_their_codes(url: str) -> None:
    assert _rpc(url, "no/such")["error"]["code"] == -32601
    assert _rpc(url, "tools/call", {})["error"]["code"] == -32602
    assert _rpc(url, "openenv/session/close", {})["error"]["code"] == -32602
    invalid = http("POST", url + "/mcp", {"id": 7, "method": 3}).json
    assert invalid["error"]["code"] == -32600
    unreadable = http("POST", url + "/mcp", b"{").json
    assert unreadable["error"]["code"] == -32700


@check
def a_json_rpc_session_keeps_its_beads(url: str) -> None:
    session = _rpc(url, "openenv/session/create")["result"]["session_id"]
    for expected in (5, 10):
        push = {"name": "push", "arguments": {"bead": 5}, "session_id": session}
        answer = _rpc(url, "tools/call", push)["result"]
        assert f'"sum":{expected}' in answer["content"][0]["text"].replace(" ", ""), answer
    closed = _rpc(url, "openenv/session/close", {"session_id": session})["result"]
    assert closed == {"session_id": session, "closed": True}
    assert _rpc(url, "openenv/session/close", {"session_id": session})["error"]["code"] == -32602


@check
def the_mcp_socket_keeps_one_session(url: str) -> None:
    with websocket(url, "/mcp") as socket:
        for expected in (2, 4):
            push = {"name": "push", "arguments": {"bead": 2}}
            answer = ask(socket, {"jsonrpc": "2.0", "id": expected, "method": "tools/call", "params": push})
            assert answer["id"] == expected
            assert f'"sum":{expected}' in answer["result"]["content"][0]["text"].replace(" ", ""), answer
        assert ask(socket, "{")["error"]["code"] == -32700


@check
def the_environment_socket_takes_mcp_frames(url: str) -> None:
    with websocket(url) as socket:
        request = {"jsonrpc": "2.0", "id": "a", "method": "tools/list", "params": {}}
        answer = ask(socket, {"type": "mcp", "data": request})
        assert answer["type"] == "mcp"
        assert answer["data"]["id"] == "a"
        assert {tool["name"] for tool in answer["data"]["result"]["tools"]} >= COMMON
        assert ask(socket, {"type": "reset"})["type"] == "observation"


@check_ours
def an_argument_of_a_wrong_type_is_the_callers_mistake(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        env.reset()
        error = env.step(_call("add", a=1, b="x")).observation.error
        assert error.error_type.value == "invalid_args"
        assert "b" in error.message


@check_ours
def tools_of_the_other_mode_are_hidden(url: str) -> None:
    with AbacusEnv(base_url=url).sync() as env:
        names = {tool.name for tool in env.list_tools()}
        assert names == COMMON | {"rehearse"}
        assert env.call_tool("rehearse", amount=2) == "rehearsed 2.0"
        with fails("settle"):
            env.call_tool("settle", amount=2)


@check_ours
async def a_standard_mcp_client_lists_and_calls_tools(url: str) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with streamablehttp_client(url + "/mcp") as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            assert {tool.name for tool in (await session.list_tools()).tools} == COMMON | {"rehearse"}
            for expected in (3, 6):
                pushed = await session.call_tool("push", {"bead": 3})
                assert pushed.structuredContent["sum"] == expected
            failed = await session.call_tool("divide", {"a": 1, "b": 0})
            assert failed.isError
            assert "division by zero" in failed.content[0].text
            unknown = await session.call_tool("multiply", {})
            assert unknown.isError


@check_ours
def an_http_session_keeps_its_beads(url: str) -> None:
    session = http("POST", url + "/sessions", {}).json["session_id"]
    assert http("POST", url + "/reset", {}, X_Session_ID=session).status == 200
    action = {"type": "call_tool", "tool_name": "push", "arguments": {"bead": 2}}
    sums = [http("POST", url + "/step", {"action": action}, X_Session_ID=session) for _ in range(6)]
    assert [answer.json["observation"]["result"]["data"]["sum"] for answer in sums] == [2, 4, 6, 8, 10, 12]
    assert http("DELETE", f"{url}/sessions/{session}", X_Session_ID=session).status in (200, 204)
    assert http("POST", url + "/step", {"action": action}, X_Session_ID=session).status == 404


if __name__ == "__main__":
    main()
