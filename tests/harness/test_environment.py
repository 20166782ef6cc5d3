from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from pydantic import ValidationError

from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.harness import (
    HarnessAction,
    HarnessConfig,
    HarnessEnvironment,
    HarnessError,
    HarnessMCPBridge,
    HarnessNotRunningError,
    HarnessStartupError,
    build_bridge_server,
    resolve_tool_conflicts,
)
from openenv.types import Action

from .agents import LineAgent


def tools() -> FastMCP:
    mcp: FastMCP = FastMCP("shop")

    @mcp.tool
    def price(item: str) -> int:
        "What an item costs."
        return len(item)

    @mcp.tool
    def bash(command: str) -> str:
        "Not the agent's."
        return f"ran {command}"

    return mcp


@asynccontextmanager
async def environment(agent: LineAgent | None = None, **options: Any) -> AsyncIterator[HarnessEnvironment]:
    made = HarnessEnvironment(agent or LineAgent(), **options)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def test_a_message_is_a_step_and_the_turn_its_observation() -> None:
    async with environment(rubric=lambda action, observation: len(action.message)) as env:
        began = await env.reset_async(episode_id="e")
        assert began.metadata == {"episode_id": "e", "injected_tools": []}
        observation = await env.step_async(HarnessAction(message="hello"))
        assert (observation.reward, observation.done) == (5, False)
        assert observation.metadata["response"] == "HELLO"
        assert [event["type"] for event in observation.metadata["turn_events"]] == ["text_output", "turn_complete"]
        last = await env.step_async(HarnessAction(message="bye"))
        assert (last.done, last.metadata["turn_number"]) == (True, 2)
        assert (env.state.step_count, len(env.trajectory)) == (2, 4)
        await env.reset_async()
        assert (env.state.step_count, env.trajectory) == (0, [])


async def test_the_agent_gets_the_tools_under_names_that_are_not_its_own() -> None:
    agent = LineAgent()
    async with environment(agent, mcp=tools()) as env:
        began = await env.reset_async()
        assert began.metadata["injected_tools"] == ["price", "env_bash"]
        assert [tool.name for tool in agent.tools] == ["price", "env_bash"]
        async with Client(str(agent.bridge_url)) as client:
            assert {tool.name for tool in await client.list_tools()} == {"price", "env_bash"}
            assert (await client.call_tool("env_bash", {"command": "ls"})).data == "ran ls"
        listed = await env.step_async(ListToolsAction())
        assert isinstance(listed, ListToolsObservation)
        assert {tool.name for tool in listed.tools} == {"price", "bash"}
        called = await env.step_async(CallToolAction(tool_name="price", arguments={"item": "tea"}))
        assert isinstance(called, CallToolObservation)
        assert called.result.data == 3


async def test_a_step_needs_an_episode_and_an_action_of_its_own() -> None:
    async with environment() as env:
        with pytest.raises(HarnessNotRunningError, match="reset"):
            await env.step_async(HarnessAction(message="hello"))
        await env.reset_async()
        with pytest.raises(TypeError, match="HarnessAction"):
            await env.step_async(Action())


@pytest.mark.parametrize(
    ("message", "limit_s", "kind", "events"),
    [
        ("crash", None, "harness_crashed", ["text_output", "error"]),
        ("quiet", None, "harness_crashed", ["error", "error"]),
        ("hang", 0.5, "turn_timeout", ["text_output", "error"]),
    ],
)
async def test_a_failed_turn_ends_the_episode_without_a_reward(
    message: str, limit_s: float | None, kind: str, events: list[str]
) -> None:
    agent = LineAgent()
    async with environment(agent, rubric=lambda action, observation: 1.0) as env:
        await env.reset_async()
        observation = await env.step_async(HarnessAction(message=message), timeout_s=limit_s)
        assert (observation.done, observation.reward) == (True, None)
        assert observation.metadata["error_type"] == kind
        assert [event["type"] for event in observation.metadata["turn_events"]] == events
        assert not agent.process.is_running()
        with pytest.raises(HarnessNotRunningError):
            await env.step_async(HarnessAction(message="more"))
        await env.reset_async()
        assert (await env.step_async(HarnessAction(message="again"))).metadata["response"] == "AGAIN"


async def test_an_agent_that_has_ended_is_a_terminal_observation() -> None:
    agent = LineAgent()
    async with environment(agent) as env:
        await env.reset_async()
        await agent.process.stop()
        observation = await env.step_async(HarnessAction(message="hello"))
        assert (observation.done, observation.metadata["error_type"]) == (True, "harness_crashed")


async def test_a_reset_that_fails_leaves_nothing_running() -> None:
    agent = LineAgent("import sys; sys.exit(3)")
    async with environment(agent, mcp=tools()) as env:
        with pytest.raises(HarnessStartupError):
            await env.reset_async()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(str(agent.bridge_url).split(":")[2].split("/")[0]))


async def test_a_cancelled_turn_stops_the_agent() -> None:
    agent = LineAgent()
    async with environment(agent) as env:
        await env.reset_async()
        stepping = asyncio.create_task(env.step_async(HarnessAction(message="hang")))
        while not env.trajectory:
            await asyncio.wait([stepping], timeout=0.01)
        stepping.cancel()
        await asyncio.wait([stepping])
        assert stepping.cancelled()
        assert not agent.process.is_running()


def test_synchronous_callers_reset_and_step() -> None:
    env = HarnessEnvironment(LineAgent())
    try:
        env.reset()
        assert env.step(HarnessAction(message="hello")).metadata["response"] == "HELLO"
    finally:
        env.close()


async def test_a_bridge_starts_and_stops_repeatedly() -> None:
    bridge = HarnessMCPBridge(tools())
    url = await asyncio.to_thread(bridge.start)
    assert bridge.start() == url == bridge.url
    await asyncio.to_thread(bridge.stop)
    bridge.stop()
    assert bridge.url is None


async def test_a_view_without_renames_is_the_server_itself() -> None:
    mcp = tools()
    assert await build_bridge_server(mcp, {}) is mcp
    with pytest.raises(HarnessError, match="fly"):
        await build_bridge_server(mcp, {"soar": "fly"})


def named(*names: str) -> list[Tool]:
    return [Tool(name=name, description="", input_schema={}) for name in names]


def test_names_of_tools_are_resolved() -> None:
    own = named("bash", "price")
    assert [tool.name for tool in resolve_tool_conflicts(own, {"bash"})] == ["env_bash", "price"]
    assert own[0].name == "bash"


@pytest.mark.parametrize("names", [("reset",), ("a", "a"), ("bash", "env_bash")])
def test_names_that_cannot_be_resolved(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=names[0]):
        resolve_tool_conflicts(named(*names), {"bash"})


def test_a_configuration_needs_a_command_and_has_no_other_fields() -> None:
    with pytest.raises(ValidationError, match="command"):
        HarnessConfig(name="x", command=[])
    with pytest.raises(ValidationError, match="other"):
        HarnessConfig.model_validate({"name": "x", "command": ["x"], "other": 1})
