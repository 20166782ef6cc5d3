"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from my_env import MyEnv
from my_env.server.app import app

from openenv.client.mcp_client import SyncMCPToolClient
from openenv.errors import ResetRequired, ToolFailed
from openenv.mcp import CallToolAction
from openenv.testing import EnvironmentConformance


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    def app(self) -> Any:
        return app

    def actions(self) -> list[dict[str, Any]]:
        return [
            {"tool_name": "prices"},
            {"tool_name": "take", "arguments": {"item": "tea", "count": 2}},
            {"tool_name": "put_back", "arguments": {"item": "tea"}},
        ]


@pytest.fixture
def env() -> Iterator[SyncMCPToolClient]:
    """A client of an app in this process, with the same calls and rules as over a network."""
    with MyEnv(app=app).sync() as client:
        yield client


def state_of(env: SyncMCPToolClient) -> dict[str, Any]:
    state: dict[str, Any] = env.state().model_dump()
    return state


def test_a_model_is_told_of_the_tools(env: SyncMCPToolClient) -> None:
    env.reset()
    tools = {tool.name: tool for tool in env.list_tools()}
    assert sorted(tools) == ["pay", "prices", "put_back", "take"]
    assert all(tool.description for tool in tools.values())
    assert tools["take"].input_schema["required"] == ["item"]


def test_an_errand_that_is_done_is_worth_one(env: SyncMCPToolClient) -> None:
    for seed in range(5):
        env.reset(seed=seed)
        for item, count in state_of(env)["wanted"].items():
            env.call_tool("take", item=item, count=count)
        result = env.step(CallToolAction(tool_name="pay"))
        assert (result.reward, result.done, result.terminated) == (1.0, True, True)
        assert result.observation.result["data"] > 0


def test_anything_else_in_the_basket_is_worth_nothing(env: SyncMCPToolClient) -> None:
    env.reset(seed=1)
    result = env.step(CallToolAction(tool_name="pay"))
    assert (result.reward, result.terminated) == (0.0, True)
    with pytest.raises(ResetRequired):
        env.step(CallToolAction(tool_name="prices"))


def test_what_a_tool_refuses_is_an_answer_and_the_errand_goes_on(env: SyncMCPToolClient) -> None:
    env.reset(seed=1)
    with pytest.raises(ToolFailed, match="there is no gold"):
        env.call_tool("take", item="gold")
    with pytest.raises(ToolFailed, match="count"):
        env.call_tool("take", item="tea", count="many")
    assert env.call_tool("take", item="tea") == {"tea": 1}


def test_an_errand_is_cut_short_after_twelve_calls(env: SyncMCPToolClient) -> None:
    env.reset(seed=1)
    results = [env.step(CallToolAction(tool_name="prices")) for _ in range(12)]
    assert [result.done for result in results] == [False] * 11 + [True]
    assert results[-1].truncated
    assert not results[-1].terminated


def test_each_episode_begins_with_an_empty_basket_and_a_list_of_its_seed(env: SyncMCPToolClient) -> None:
    first = env.reset(seed=7).observation.task
    env.call_tool("take", item="tea")
    assert env.reset(seed=7).observation.task == first
    assert state_of(env)["basket"] == {}
    assert len({env.reset(seed=seed).observation.task for seed in range(5)}) > 1
