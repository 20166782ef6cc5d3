"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tool_shop import ToolShopEnv
from tool_shop.server import tasks
from tool_shop.server.app import app
from tool_shop.server.shop import Shop
from tool_shop.server.tool_shop_environment import MOST_CALLS, ToolShopEnvironment

from openenv.client.mcp_client import SyncMCPToolClient
from openenv.errors import InvalidArgument, ResetRequired, ToolFailed
from openenv.mcp import CallToolAction
from openenv.mcp.environment import answer
from openenv.mcp.types import ToolRequest
from openenv.testing import EnvironmentConformance
from openenv.types import StepResult


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    def app(self) -> Any:
        return app

    def actions(self) -> list[dict[str, Any]]:
        return [
            {"tool_name": "search_products", "arguments": {"query": "tea"}},
            {"tool_name": "place_order", "arguments": {"customer_id": 1, "product_id": 2, "quantity": 1}},
            {"tool_name": "list_orders", "arguments": {"customer_id": 1}},
            {"tool_name": "update_address", "arguments": {"customer_id": 3, "address": "1 New Road"}},
        ]


@pytest.fixture(scope="module")
def env() -> Iterator[SyncMCPToolClient]:
    """A client of an app in this process, with the same calls and rules as over a network."""
    with ToolShopEnv(app=app).sync() as client:
        yield client


def begin(env: SyncMCPToolClient, kind: str, split: str = "train") -> tuple[str, dict[str, Any]]:
    """Starts a task of a kind. Returns its text and its customer."""
    text = env.reset(split=split, index=list(tasks.KINDS).index(kind)).observation.task
    (email,) = re.findall(r"\((\S+)\)", text)
    (customer,) = env.call_tool("search_customers", query=email)
    return text, customer


def finish(env: SyncMCPToolClient) -> StepResult[Any]:
    return env.step(CallToolAction(tool_name="finish"))


def solve(env: SyncMCPToolClient, kind: str) -> StepResult[Any]:
    """Reaches the goal of a task by tool calls alone."""
    text, customer = begin(env, kind)
    orders = env.call_tool("list_orders", customer_id=customer["id"])
    if kind == "buy":
        count, which, category = re.findall(r"wants (\d+) of the (.*) product in the category (\w+)", text)[0]
        goods = [each for each in env.call_tool("search_products", query=category) if each["category"] == category]
        goods.sort(key=lambda each: each["cents"], reverse=which != "cheapest")
        env.call_tool("place_order", customer_id=customer["id"], product_id=goods[0]["id"], quantity=int(count))
    elif kind == "again":
        item = orders[-1]["items"][0]
        env.call_tool(
            "place_order", customer_id=customer["id"], product_id=item["product_id"], quantity=item["quantity"]
        )
    elif kind == "refund":
        env.call_tool("refund", order_id=[each["id"] for each in orders if each["status"] == "delivered"][-1])
    elif kind == "cancel":
        for order in orders:
            if order["status"] == "placed":
                env.call_tool("cancel_order", order_id=order["id"])
    else:
        address = text.split("moved to ")[1].split(".")[0]
        env.call_tool("update_address", customer_id=customer["id"], address=address)
    return finish(env)


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_the_goal_of_a_task_earns_one(env: SyncMCPToolClient, kind: str) -> None:
    result = solve(env, kind)
    assert (result.reward, result.done, result.terminated, result.truncated) == (1.0, True, True, False)
    assert env.state().made == env.state().wanted
    with pytest.raises(ResetRequired):
        finish(env)


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_an_unchanged_database_earns_zero(env: SyncMCPToolClient, kind: str) -> None:
    begin(env, kind)
    assert finish(env).reward == 0.0


def test_an_unwanted_change_cancels_the_reward_of_a_wanted_one(env: SyncMCPToolClient) -> None:
    text, customer = begin(env, "move")
    address = text.split("moved to ")[1].split(".")[0]
    env.call_tool("update_address", customer_id=customer["id"], address=address)
    env.call_tool("update_address", customer_id=customer["id"] % 9 + 1, address="1 Wrong Way")
    assert finish(env).reward == 0.0


def test_half_of_the_goal_earns_half(env: SyncMCPToolClient) -> None:
    index = next(i for i in range(3, 300, 5) if tasks.task("train", i).wanted.total() == 2)
    text = env.reset(split="train", index=index).observation.task
    (customer,) = env.call_tool("search_customers", query=re.findall(r"\((\S+)\)", text)[0])
    placed = [
        each["id"] for each in env.call_tool("list_orders", customer_id=customer["id"]) if each["status"] == "placed"
    ]
    env.call_tool("cancel_order", order_id=placed[0])
    assert finish(env).reward == 0.5


def test_an_episode_is_truncated_after_its_last_call(env: SyncMCPToolClient) -> None:
    env.reset(seed=1)
    results = [env.step(CallToolAction(tool_name="get_order", arguments={"order_id": 1})) for _ in range(MOST_CALLS)]
    assert [result.truncated for result in results] == [False] * (MOST_CALLS - 1) + [True]
    assert (results[-1].reward, results[-1].terminated) == (0.0, False)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("place_order", {"customer_id": 1, "product_id": 1, "quantity": 99}),
        ("place_order", {"customer_id": 1, "product_id": 999, "quantity": 1}),
        ("place_order", {"customer_id": 1, "product_id": 1, "quantity": 0}),
        ("place_order", {"customer_id": 2**60, "product_id": 1, "quantity": 1}),
        ("cancel_order", {"order_id": 10_000}),
        ("refund", {"order_id": -1}),
        ("update_address", {"customer_id": 1, "address": ""}),
        ("update_address", {"customer_id": "1 or 1=1", "address": "x"}),
        ("get_order", {"order_id": "1; drop table orders"}),
        ("get_order", {}),
        ("none", {}),
    ],
)
def test_a_failed_tool_call_is_an_observation_and_changes_nothing(
    env: SyncMCPToolClient, tool: str, arguments: dict[str, Any]
) -> None:
    env.reset(split="train", index=0)
    result = env.step(CallToolAction(tool_name=tool, arguments=arguments))
    assert result.observation.error is not None
    assert not result.done
    assert env.state().made == []


INJECTIONS = ["x'; drop table orders; --", "' or '1'='1", '"; delete from customers; --', "%", "_", "\\", "\0", "😀'"]


@pytest.mark.parametrize("text", INJECTIONS)
def test_text_never_becomes_a_statement(env: SyncMCPToolClient, text: str) -> None:
    env.reset(split="train", index=0)
    assert env.call_tool("search_customers", query=text) == []
    assert env.call_tool("search_products", query=text) == []
    env.call_tool("update_address", customer_id=1, address=text)
    assert env.state().made == [f"customer 1 lives at {text}"]
    assert len(env.call_tool("search_customers", query="example")) == 9


def test_text_that_is_not_unicode_raises_and_changes_nothing() -> None:
    shop = Shop(tasks.task("train", 0).image)
    before = shop.facts()
    with pytest.raises(UnicodeEncodeError):
        shop.update_address(1, "\ud800")
    assert shop.facts() == before
    shop.close()


def test_each_episode_begins_with_the_same_database(env: SyncMCPToolClient) -> None:
    env.reset(split="train", index=4)
    env.call_tool("update_address", customer_id=1, address="elsewhere")
    env.reset(split="train", index=4)
    assert env.state().made == []
    assert env.call_tool("search_customers", query="elsewhere") == []


def test_two_sessions_have_two_databases(env: SyncMCPToolClient) -> None:
    with ToolShopEnv(app=app).sync() as other:
        for each in (env, other):
            each.reset(split="train", index=4)
        env.call_tool("update_address", customer_id=1, address="elsewhere")
        assert other.state().made == []


def test_a_fork_continues_with_its_own_copy_of_the_database() -> None:
    first, second = ToolShopEnvironment(), ToolShopEnvironment()
    try:
        first.reset(split="train", index=0)
        first.step(CallToolAction(tool_name="update_address", arguments={"customer_id": 1, "address": "here"}))
        second.load_state(first.save_state())
        assert second.state.made == first.state.made == ["customer 1 lives at here"]
        second._state = second.state.model_copy()
        second.step(CallToolAction(tool_name="update_address", arguments={"customer_id": 2, "address": "there"}))
        first.step(CallToolAction(tool_name="get_order", arguments={"order_id": 1}))
        assert first.state.made == ["customer 1 lives at here"]
        assert len(second.state.made) == 2
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(
    "arguments",
    [
        *({"split": "none"}, {"split": ["train"]}, {"split": ""}),
        *({"split": "train", "index": 300}, {"index": -1}, {"index": "x"}, {"index": True}, {"index": 1.0}),
    ],
)
def test_an_invalid_split_or_index_raises_invalid_argument(env: SyncMCPToolClient, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"no split|no task"):
        env.reset(**arguments)


def test_an_invalid_reset_does_not_change_the_tasks_of_other_sessions(env: SyncMCPToolClient) -> None:
    before = tasks.task("train", 1)
    tasks.task.cache_clear()
    with pytest.raises(InvalidArgument):
        env.reset(split="train", index=True)
    assert tasks.task("train", 1).text == before.text


def test_the_list_of_tools_has_their_arguments(env: SyncMCPToolClient) -> None:
    env.reset()
    tools = {tool.name: tool for tool in env.list_tools()}
    assert len(tools) == 9
    assert all(tool.description for tool in tools.values())
    assert tools["place_order"].input_schema["required"] == ["customer_id", "product_id", "quantity"]
    with pytest.raises(ToolFailed, match="there is no order"):
        env.call_tool("get_order", order_id=9999)


def test_a_seed_chooses_the_task(env: SyncMCPToolClient) -> None:
    chosen = [env.reset(seed=seed).observation.task for seed in (7, 7, 8)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_every_task_has_a_goal_and_names_its_customer() -> None:
    for split, size in tasks.SIZES.items():
        for index in range(size):
            task = tasks.task(split, index)
            assert task.wanted.total() >= 1
            assert re.search(r"\(\S+@\S+\)", task.text)
    assert tasks.task("train", 0).text != tasks.task("test", 0).text


def test_the_task_api_has_texts_and_no_databases() -> None:
    listed = ToolShopEnvironment.get_task_range("test", 2, 5)
    assert [each["index"] for each in listed] == [2, 3, 4]
    assert ToolShopEnvironment.num_tasks("test") == len(ToolShopEnvironment.list_tasks("test")) == 100
    assert set(listed[0]) == {"split", "index", "kind", "task"}


def test_a_tool_call_after_the_end_without_a_step_changes_nothing() -> None:
    """At `/mcp`, clients call tools without a step."""
    environment = ToolShopEnvironment()
    environment.reset(split="train", index=0)
    environment.step(CallToolAction(tool_name="finish"))
    before = environment.save_state()["image"]
    late = answer(
        environment, ToolRequest("update_address", {"customer_id": 1, "address": "1 New Road"}, standard=False)
    )
    assert isinstance(late, dict)
    assert "the episode has ended" in late["error"]["message"]
    assert environment.save_state()["image"] == before
    environment.close()
